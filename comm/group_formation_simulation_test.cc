// Groups of processes over a simulated network, with processes that are killed,
// stopped and started again at any moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <variant>

#include "comm/group_agreement.h"
#include "comm/group_formation.h"

namespace baton {
namespace {

struct Process {
  GroupMember member;
  std::unique_ptr<GroupFormation> formation;  // None: it is dead.
  bool stopped = false;
  // What this incarnation was told last.
  std::optional<GroupEpoch> formed;
  bool started = false;
  std::optional<GroupEpochEnd> ended;
  uint64_t newest_epoch = 0;
};

struct AcceptItem {};
struct ConnectedItem {};
struct CloseItem {};
using Item = std::variant<AcceptItem, ConnectedItem, CloseItem, GroupMessage>;

// A connection: the dialer's end, and the other one.
struct Wire {
  struct End {
    size_t process = 0;
    ConnectionId id;
    bool open = true;
    std::deque<Item> arriving;
  };
  std::array<End, 2> ends;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    uint32_t ep_size = 0;
    for (uint64_t n = 1 + Draw(6); n > 0; --n) {
      Process process;
      process.member.rank_offset = ep_size;
      process.member.local_ranks = 1 + static_cast<uint32_t>(Draw(3));
      ep_size += process.member.local_ranks;
      processes_.push_back(std::move(process));
    }
    ep_size_ = ep_size;
    for (size_t p = 0; p < processes_.size(); ++p) Start(p);
  }

  uint64_t Draw(uint64_t n) { return random_() % n; }
  size_t size() const { return processes_.size(); }
  const Process& process(size_t p) const { return processes_[p]; }
  bool alive(size_t p) const { return processes_[p].formation != nullptr; }

  void Start(size_t p) {
    Process& process = processes_[p];
    process.member.incarnation = ++incarnations_;
    process.member.link_address = std::to_string(p);
    process.formation = std::make_unique<GroupFormation>(
        GroupFormationOptions{.self = {.fingerprint = "f",
                                       .ep_size = ep_size_,
                                       .member = process.member},
                              .leader_address = "0"});
    process.stopped = process.started = false;
    process.formed.reset();
    process.ended.reset();
    process.newest_epoch = 0;
    process.formation->Tick(now_);
  }

  // What it sent arrives, up to some moment if its host is gone as well.
  void Kill(size_t p) {
    processes_[p].formation.reset();
    const bool host_is_gone = Draw(2) == 0;
    for (Wire& wire : wires_) {
      for (const int side : {0, 1}) {
        if (!wire.ends[side].open || wire.ends[side].process != p) continue;
        std::deque<Item>& sent = wire.ends[1 - side].arriving;
        if (host_is_gone) sent.resize(Draw(sent.size() + 1));
        CloseEnd(&wire, side);
      }
    }
  }
  void Stop(size_t p) { processes_[p].stopped = true; }
  void Continue(size_t p) { processes_[p].stopped = false; }

  void JoinIfOutside(size_t p) {
    Process& process = processes_[p];
    if (!runs(p) || process.formation->phase() != GroupPhase::kOutside) return;
    process.formation->Tick(now_);
    process.formation->Join("t");
    Act(p);
  }
  void EndEpoch(size_t p, const std::vector<uint32_t>& suspects) {
    if (!runs(p) || !processes_[p].started) return;
    processes_[p].formation->EndEpoch(processes_[p].formed->epoch, suspects,
                                      "watchdog");
    Act(p);
  }
  // A connection of nobody's, which says something.
  void Intrude(size_t p) {
    if (!runs(p)) return;
    const uint64_t epoch = processes_[p].formation->last_epoch() + Draw(2);
    const GroupMessage messages[] = {
        GroupReady{epoch},
        GroupStart{epoch},
        GroupFormed{epoch, {}},
        GroupLinkHello{epoch, static_cast<uint32_t>(Draw(ep_size_)), 0},
        GroupEpochEnding{epoch, {0}, "lie"},
        GroupRefused{"x", "lie"},
        GroupForeignVersion{2},
        GroupHello{}};
    const ConnectionId id = processes_[p].formation->Accepted();
    processes_[p].formation->Received(id, messages[Draw(std::size(messages))]);
    Act(p);
  }

  // Something that can happen happens: an arrival, else time goes on.
  void Step() {
    if (Draw(20) == 0 || !Deliver()) PassTime();
  }
  bool AllRun() const {
    std::set<uint64_t> epochs;
    for (const Process& process : processes_) {
      if (!process.formation || !process.started) return false;
      epochs.insert(process.formed->epoch);
    }
    return epochs.size() == 1;
  }
  // Steps until `done`; how long that took.
  template <typename Done>
  absl::Duration Until(Done done) {
    const absl::Time start = now_;
    while (!done() && now_ < start + absl::Minutes(5)) Step();
    EXPECT_TRUE(done());
    return now_ - start;
  }

 private:
  bool runs(size_t p) const { return alive(p) && !processes_[p].stopped; }

  void CloseEnd(Wire* wire, int side) {
    wire->ends[side].open = false;
    wire->ends[side].arriving.clear();
    wire->ends[1 - side].arriving.push_back(CloseItem{});
  }

  bool Deliver() {
    std::erase_if(wires_, [](const Wire& w) {
      return !w.ends[0].open && !w.ends[1].open;
    });
    std::vector<std::pair<size_t, int>> ready;
    for (size_t w = 0; w < wires_.size(); ++w) {
      for (const int side : {0, 1}) {
        const Wire::End& end = wires_[w].ends[side];
        if (end.open && runs(end.process) && !end.arriving.empty()) {
          ready.emplace_back(w, side);
        }
      }
    }
    if (ready.empty()) return false;
    const auto [w, side] = ready[Draw(ready.size())];
    Wire::End& end = wires_[w].ends[side];
    const Item item = std::move(end.arriving.front());
    end.arriving.pop_front();
    GroupFormation* formation = processes_[end.process].formation.get();
    formation->Tick(now_);
    const size_t p = end.process;
    if (std::holds_alternative<AcceptItem>(item)) {
      end.id = formation->Accepted();
    } else if (std::holds_alternative<ConnectedItem>(item)) {
      formation->Connected(end.id, std::to_string(p));
    } else if (std::holds_alternative<CloseItem>(item)) {
      end.open = false;
      wires_[w].ends[1 - side].open = false;
      formation->Closed(end.id, "closed");
    } else {
      formation->Received(end.id, std::get<GroupMessage>(item));
    }
    Act(p);
    return true;
  }

  void PassTime() {
    absl::Time next = now_ + absl::Seconds(1);
    for (size_t p = 0; p < size(); ++p) {
      if (!runs(p)) continue;
      next = std::min(next, processes_[p].formation->next_deadline());
    }
    now_ = std::max(now_, next) + absl::Microseconds(Draw(1000));
    for (size_t p = 0; p < size(); ++p) {
      if (!runs(p)) continue;
      processes_[p].formation->Tick(now_);
      Act(p);
    }
  }

  void Act(size_t p) {
    processes_[p].formation->CheckInvariants();
    for (const GroupAction& action : processes_[p].formation->TakeActions()) {
      std::visit([this, p](const auto& a) { Do(p, a); }, action);
    }
  }

  void Do(size_t p, const GroupConnect& action) {
    if (Draw(100) == 0) return;  // Lost on the way; no answer.
    const size_t to = std::stoul(action.address);
    Wire wire;
    wire.ends[0] = {p, action.connection, true, {}};
    wire.ends[1] = {to, ConnectionId(), alive(to), {}};
    if (alive(to)) {
      wire.ends[0].arriving.push_back(ConnectedItem{});
      wire.ends[1].arriving.push_back(AcceptItem{});
    } else {
      wire.ends[0].arriving.push_back(CloseItem{});
    }
    wires_.push_back(std::move(wire));
  }
  // The open end of `p` named `id`.
  std::optional<std::pair<Wire*, int>> FindEnd(size_t p, ConnectionId id) {
    for (Wire& wire : wires_) {
      for (const int side : {0, 1}) {
        const Wire::End& end = wire.ends[side];
        if (end.open && end.process == p && end.id == id) {
          return std::pair(&wire, side);
        }
      }
    }
    return std::nullopt;
  }
  void Do(size_t p, const GroupSend& action) {
    const auto end = FindEnd(p, action.connection);
    if (!end.has_value()) return;  // It was an intruder's, or is closing.
    Wire::End& other = end->first->ends[1 - end->second];
    if (other.open) other.arriving.push_back(action.message);
  }
  void Do(size_t p, const GroupClose& action) {
    if (const auto end = FindEnd(p, action.connection)) {
      CloseEnd(end->first, end->second);
    }
  }
  void Do(size_t p, const GroupHasFormed& action) {
    Process& process = processes_[p];
    ASSERT_FALSE(process.formed.has_value());
    ASSERT_GT(action.group.epoch, process.newest_epoch);
    process.newest_epoch = action.group.epoch;
    process.formed = action.group;
  }
  // All of its processes have formed it. A number may come again only when all
  // who have seen it are gone.
  void Do(size_t p, const GroupHasStarted& action) {
    Process& process = processes_[p];
    ASSERT_TRUE(process.formed.has_value());
    ASSERT_FALSE(process.started);
    process.started = true;
    std::set<uint64_t> incarnations;
    for (size_t q = 0; q < size(); ++q) {
      const uint64_t incarnation = action.group.members[q].incarnation;
      incarnations.insert(incarnation);
      const bool is_same = processes_[q].member.incarnation == incarnation;
      if (!alive(q) || !is_same) continue;
      ASSERT_GE(processes_[q].newest_epoch, action.group.epoch);
    }
    for (const std::set<uint64_t>& other : groups_[action.group.epoch]) {
      if (other == incarnations) return;
      const bool disjoint =
          std::none_of(other.begin(), other.end(),
                       [&](uint64_t i) { return incarnations.contains(i); });
      ASSERT_TRUE(disjoint);
    }
    groups_[action.group.epoch].push_back(incarnations);
  }
  void Do(size_t p, const GroupHasEnded& action) {
    Process& process = processes_[p];
    ASSERT_TRUE(process.formed.has_value());
    ASSERT_EQ(action.end.epoch, process.formed->epoch);
    ASSERT_EQ(action.end.started, process.started);
    process.formed.reset();
    process.started = false;
    process.ended = action.end;
  }
  void Do(size_t, const GroupWasRefused& action) {
    FAIL() << action.refused.reason;
  }
  void Do(size_t, const GroupNote&) {}

  std::mt19937_64 random_;
  uint32_t ep_size_ = 0;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t incarnations_ = 0;
  std::vector<Process> processes_;
  std::vector<Wire> wires_;
  // Of each epoch that started, the incarnations.
  std::map<uint64_t, std::vector<std::set<uint64_t>>> groups_;
};

void DoSomethingBad(World* world) {
  const size_t p = world->Draw(world->size());
  switch (world->Draw(5)) {
    case 0:
      if (world->alive(p)) world->Kill(p);
      return;
    case 1:
      if (world->alive(p)) world->Stop(p);
      return;
    case 2:
      world->EndEpoch(p, {static_cast<uint32_t>(world->Draw(8))});
      return;
    case 3:
      world->Intrude(p);
      return;
    default:
      world->Continue(p);
      if (!world->alive(p)) world->Start(p);
  }
}

void JoinAll(World* world) {
  for (size_t p = 0; p < world->size(); ++p) world->JoinIfOutside(p);
}

void Heal(World* world) {
  for (size_t p = 0; p < world->size(); ++p) {
    world->Continue(p);
    if (!world->alive(p)) world->Start(p);
  }
  world->Until([world] {
    JoinAll(world);
    return world->AllRun();
  });
}

void ExpectAllOthersName(const World& world, size_t p) {
  for (size_t q = 0; q < world.size(); ++q) {
    if (q == p) continue;
    ASSERT_TRUE(world.process(q).ended.has_value());
    EXPECT_EQ(world.process(q).ended->ranks, RanksOf(world.process(p).member));
    EXPECT_TRUE(world.process(q).ended->started);
  }
}

bool OthersHaveEnded(const World& world, size_t p) {
  for (size_t q = 0; q < world.size(); ++q) {
    if (q != p && world.process(q).started) return false;
  }
  return true;
}

void RunSeed(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  World world(seed);
  for (uint64_t n = world.Draw(300); n > 0; --n) {
    if (world.Draw(10) == 0) DoSomethingBad(&world);
    if (world.Draw(5) == 0) world.JoinIfOutside(world.Draw(world.size()));
    world.Step();
  }
  Heal(&world);
  if (::testing::Test::HasFailure()) return;

  const size_t killed = world.Draw(world.size());
  if (world.size() > 1) world.Kill(killed);
  world.Until([&] { return OthersHaveEnded(world, killed); });
  ExpectAllOthersName(world, killed);
  Heal(&world);

  const size_t stopped = world.Draw(world.size());
  world.Stop(stopped);
  for (size_t p = 0; p < world.size(); ++p) {
    if (p != stopped && (p % 2 == 0 || stopped == 0)) {
      world.EndEpoch(p, RanksOf(world.process(stopped).member));
    }
  }
  if (world.size() < 3) return;
  world.Until([&] { return OthersHaveEnded(world, stopped); });
  ExpectAllOthersName(world, stopped);
  Heal(&world);
}

TEST(GroupFormationSimulationTest, AGroupFormsAgainAfterAnything) {
  for (uint64_t seed = 1; seed <= 10'000; ++seed) {
    RunSeed(seed);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace baton
