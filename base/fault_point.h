// Named places at which a test makes a process fail. They exist only where
// BATON_FAULT_POINTS is defined, as in sanitizer builds; a release has no trace
// of them.
//
//   if (ReachFaultPoint(FaultPoint::kKvExportDone)) return false;
//
// tests/fault/README.md lists the points and what may happen there.
#ifndef BATON_BASE_FAULT_POINT_H_
#define BATON_BASE_FAULT_POINT_H_

#include <string>

namespace baton {

enum class FaultPoint {
  // Exporter of KV.
  kKvExportOpened,  // An importer has come; it has no block yet.
  kKvExportBlocks,  // Blocks became readable; the importer doesn't know yet.
  kKvExportTail,    // The tail, likewise: the last before `done`.
  kKvExportDone,    // The importer has all. fail: that word is lost.
  // Importer of KV.
  kKvImportOpen,       // The exporter doesn't know of it yet.
  kKvImportBlock,      // A block has arrived. fail: one bit of it flips.
  kKvImportCut,        // Likewise. fail: its second half is missing.
  kKvImportTail,       // The tail has arrived. fail: it is lost.
  kKvImportDone,       // It has all; the exporter doesn't know yet.
  kKvImportDoneTwice,  // fail: `done` is sent twice.
  // A process of a group.
  kVotePost,  // Before its ballot of a step goes to anyone.
  kVoteSent,  // After it has gone to one of its peers.
  // A worker.
  kTokensDrawn,  // Before they are queued for their stream.
  kDrain,        // It begins.
};

#ifdef BATON_FAULT_POINTS

// Does what was asked for there; true: the caller fails as the point says.
// Thread-safe.
bool ReachFaultPoint(FaultPoint point);

// `text`: rules, comma-separated, each NAME:ACTION or NAME:ACTION:COUNT.
//   NAME    kv_export_opened and so on
//   ACTION  kill (by SIGKILL), stop (by SIGSTOP), fail, delayN (milliseconds)
//   COUNT   act the COUNTth time alone; without it, each time
// Says what is wrong with it, or nothing. REQUIRES: no other thread is there.
std::string ArmFaultPoints(const std::string& text);

#else

constexpr bool ReachFaultPoint(FaultPoint) { return false; }

#endif

}  // namespace baton

#endif  // BATON_BASE_FAULT_POINT_H_
