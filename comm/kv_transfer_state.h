// The states of an export and of an import, and their legal transitions.
#ifndef BATON_COMM_KV_TRANSFER_STATE_H_
#define BATON_COMM_KV_TRANSFER_STATE_H_

namespace baton {

enum class KvExportState {
  kOpenable,  // The handle is out; nobody has asked for the blocks.
  kOpened,    // Belongs to the first importer that asked.
  kDraining,  // Its end is decided; blocks it sent are still in flight.
  kEnded,     // Reported; the blocks are the engine's again.
};

constexpr bool IsLegalTransition(KvExportState from, KvExportState to) {
  using enum KvExportState;
  switch (from) {
    case kOpenable:
      return to == kOpened     // An open message that fits the export.
             || to == kEnded;  // EndExport, or the lease ran out.
    case kOpened:
      return to == kDraining   // Any end, with blocks in flight.
             || to == kEnded;  // Any end: done, cancel, EndExport, lease, peer.
    case kDraining:
      return to == kEnded;  // The last send completed.
    case kEnded:
      return false;
  }
  return false;
}

enum class KvImportState {
  kOpening,   // Has asked; the exporter has said nothing.
  kMoving,    // Blocks move as they become readable.
  kDraining,  // Failed; blocks may still be written by matched receives.
  kEnded,     // Reported; the blocks are the engine's again.
};

constexpr bool IsLegalTransition(KvImportState from, KvImportState to) {
  using enum KvImportState;
  switch (from) {
    case kOpening:
      return to == kMoving       // The first word from the exporter.
             || to == kDraining  // Any failure, with receives outstanding.
             || to == kEnded;    // Any failure.
    case kMoving:
      return to == kDraining   // Any failure, with receives outstanding.
             || to == kEnded;  // All blocks and the tail are here; a failure.
    case kDraining:
      return to == kEnded;  // The last receive completed.
    case kEnded:
      return false;
  }
  return false;
}

}  // namespace baton

#endif  // BATON_COMM_KV_TRANSFER_STATE_H_
