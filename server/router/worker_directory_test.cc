#include "server/router/worker_directory.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

using v1::WORKER_ROLE_DECODE;
using v1::WORKER_ROLE_PREFILL;
using v1::WORKER_ROLE_UNIFIED;

WorkerEntry Entry(v1::WorkerRole role, const std::string& text) {
  const absl::StatusOr<WorkerEntry> entry = ParseWorkerEntry(role, text);
  EXPECT_TRUE(entry.ok()) << entry.status();
  return *entry;
}

std::vector<WorkerEntry> File(const std::string& text) {
  const auto entries = ParseWorkersFile("f", text);
  EXPECT_TRUE(entries.ok()) << entries.status();
  return *entries;
}

std::string FileError(const std::string& text) {
  return std::string(ParseWorkersFile("/etc/w", text).status().message());
}

std::vector<std::pair<std::string, v1::WorkerRole>> All(
    const WorkerDirectory& directory) {
  std::vector<std::pair<std::string, v1::WorkerRole>> all;
  for (const WorkerAddress& worker : directory.Workers()) {
    all.emplace_back(worker.address, worker.role);
  }
  return all;
}

using Workers = std::vector<std::pair<std::string, v1::WorkerRole>>;

TEST(ParseWorkerEntryTest, TakesAddressesAndNames) {
  const WorkerEntry plain = Entry(WORKER_ROLE_DECODE, "host.b:50061");
  EXPECT_EQ(plain.host, "host.b");
  EXPECT_EQ(plain.port, "50061");
  EXPECT_FALSE(plain.is_dns_name);
  EXPECT_EQ(Entry(WORKER_ROLE_DECODE, "[fd00::1]:7").host, "[fd00::1]");
  const WorkerEntry name = Entry(WORKER_ROLE_DECODE, "dns:decode.ns:50061");
  EXPECT_EQ(name.host, "decode.ns");
  EXPECT_EQ(name.port, "50061");
  EXPECT_TRUE(name.is_dns_name);
}

TEST(ParseWorkerEntryTest, RefusesWhatIsNeither) {
  for (const char* text : {"", "host", "host:", ":1", "host:0", "host:65536",
                           "host:+1", "host:1x", "a:b:1", "[::1:2", "h h:1"}) {
    const absl::Status status =
        ParseWorkerEntry(WORKER_ROLE_DECODE, text).status();
    EXPECT_EQ(status.message(), "'" + std::string(text) + "' is not host:port");
  }
  for (const char* text : {"dns:", "dns:a", "dns:a:", "dns::1", "dns:a:b:1"}) {
    const absl::Status status =
        ParseWorkerEntry(WORKER_ROLE_DECODE, text).status();
    EXPECT_EQ(status.message(),
              "'" + std::string(text) + "' is not dns:NAME:PORT");
  }
}

TEST(ParseWorkersFileTest, TakesRolesAddressesAndComments) {
  WorkerDirectory directory({});
  directory.SetFile(
      File("# workers\n\nprefill a:1\n  decode\tb:2  # the big one\r\n"
           "unified c:3"));
  EXPECT_EQ(All(directory), (Workers{{"a:1", WORKER_ROLE_PREFILL},
                                     {"b:2", WORKER_ROLE_DECODE},
                                     {"c:3", WORKER_ROLE_UNIFIED}}));
  EXPECT_TRUE(File("").empty());
  EXPECT_TRUE(File("#\n").empty());
}

TEST(ParseWorkersFileTest, NamesFileAndLineOfWhatIsWrong) {
  EXPECT_EQ(FileError("decode a:1\n\ndecode b\n"),
            "/etc/w:3: 'b' is not host:port");
  EXPECT_EQ(FileError("worker a:1"),
            "/etc/w:1: 'worker' is not prefill, decode or unified");
  EXPECT_EQ(FileError("decode\n"), "/etc/w:1: is not a role and an address");
  EXPECT_EQ(FileError("decode a:1 b:1\n"),
            "/etc/w:1: is not a role and an address");
  EXPECT_EQ(FileError("#\ndecode dns:x\n"),
            "/etc/w:2: 'dns:x' is not dns:NAME:PORT");
}

TEST(ParseWorkersFileTest, TakesAsManyWorkersAsThereMayBe) {
  std::string text;
  for (size_t i = 0; i < kMaxWorkers; ++i) text += "decode a:1\n";
  EXPECT_EQ(File(text).size(), kMaxWorkers);
  EXPECT_EQ(FileError(text + "decode a:1\n"),
            "/etc/w:513: is one more than 512 workers");
}

TEST(WorkerDirectoryTest, AFileTakesThePlaceOfWhatItSaidBefore) {
  WorkerDirectory directory({Entry(WORKER_ROLE_UNIFIED, "flag:1")});
  directory.SetFile(File("decode a:1\n"));
  directory.SetFile(File("decode b:1\n"));
  EXPECT_EQ(All(directory), (Workers{{"flag:1", WORKER_ROLE_UNIFIED},
                                     {"b:1", WORKER_ROLE_DECODE}}));
}

TEST(WorkerDirectoryTest, AllAddressesOfANameAreWorkersOfItsPortAndRole) {
  WorkerDirectory directory({Entry(WORKER_ROLE_DECODE, "dns:d:50061"),
                             Entry(WORKER_ROLE_PREFILL, "dns:p:7")});
  EXPECT_EQ(directory.Names(), (std::set<std::string>{"d", "p"}));
  EXPECT_TRUE(All(directory).empty()) << "not looked up yet";
  directory.SetAddresses("d", {"[fd00::1]", "[fd00::2]"});
  EXPECT_EQ(All(directory), (Workers{{"[fd00::1]:50061", WORKER_ROLE_DECODE},
                                     {"[fd00::2]:50061", WORKER_ROLE_DECODE}}));
  directory.SetAddresses("d", {"10.0.0.2"});
  directory.SetAddresses("p", {"10.0.1.1"});
  EXPECT_EQ(All(directory), (Workers{{"10.0.0.2:50061", WORKER_ROLE_DECODE},
                                     {"10.0.1.1:7", WORKER_ROLE_PREFILL}}));
  EXPECT_EQ(directory.num_addresses("d"), 1u);
}

TEST(WorkerDirectoryTest, AHostWithAddressesOfBothFamiliesIsOneWorker) {
  WorkerDirectory directory({Entry(WORKER_ROLE_DECODE, "dns:d:1")});
  directory.SetAddresses("d",
                         {"10.0.0.1", "10.0.0.2", "[fd00::1]", "[fd00::2]"});
  EXPECT_EQ(All(directory), (Workers{{"10.0.0.1:1", WORKER_ROLE_DECODE},
                                     {"10.0.0.2:1", WORKER_ROLE_DECODE}}));
}

TEST(WorkerDirectoryTest, ANameThatIsListedNoMoreIsForgotten) {
  WorkerDirectory directory({});
  directory.SetFile(File("decode dns:d:1\n"));
  directory.SetAddresses("d", {"10.0.0.1"});
  directory.SetFile(File("decode dns:d:2\n"));
  EXPECT_EQ(All(directory), (Workers{{"10.0.0.1:2", WORKER_ROLE_DECODE}}));
  directory.SetFile(File("decode a:1\n"));
  directory.SetAddresses("d", {"10.0.0.9"});  // A look-up that took its time.
  directory.SetFile(File("decode dns:d:1\n"));
  EXPECT_TRUE(All(directory).empty());
}

}  // namespace
}  // namespace baton
