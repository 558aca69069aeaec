// Where a process stands with its group, and the legal transitions.
#ifndef BATON_COMM_GROUP_PHASE_H_
#define BATON_COMM_GROUP_PHASE_H_

namespace baton {

enum class GroupPhase {
  kOutside,     // Has not joined, or has not joined again.
  kPausing,     // A member before its next try.
  kConnecting,  // A member connects to the leader.
  kGathering,   // The leader waits for members; a member waits for Formed.
  kLinking,     // Formed: every two processes make their link.
  kReady,       // A member has all its links; others may not.
  kRunning,     // Started. The close of any link ends the epoch.
  kRefused,     // The leader doesn't want this process: final.
};

constexpr bool IsLegalTransition(GroupPhase from, GroupPhase to) {
  using enum GroupPhase;
  switch (from) {
    case kOutside:
      return to == kConnecting     // A member joins.
             || to == kPausing     // The same, after failures.
             || to == kGathering;  // The leader joins.
    case kPausing:
      return to == kConnecting;  // The pause is over.
    case kConnecting:
      return to == kGathering    // Connected; Hello is sent.
             || to == kPausing;  // No leader there.
    case kGathering:
      return to == kLinking     // All ranks are there.
             || to == kPausing  // The leader is gone.
             || to == kRefused;
    case kLinking:
      return to == kReady        // A member has all its links.
             || to == kRunning   // The leader, when all are ready.
             || to == kOutside;  // A process is lost, or late.
    case kReady:
      return to == kRunning || to == kOutside;
    case kRunning:
      return to == kOutside;  // A link closed; EpochEnding; EndEpoch.
    case kRefused:
      return false;
  }
  return false;
}

}  // namespace baton

#endif  // BATON_COMM_GROUP_PHASE_H_
