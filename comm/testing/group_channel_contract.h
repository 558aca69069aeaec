// What every GroupChannel does, as tests: for a test that instantiates
// GroupChannelContract with how its channels are made.
#ifndef BATON_COMM_TESTING_GROUP_CHANNEL_CONTRACT_H_
#define BATON_COMM_TESTING_GROUP_CHANNEL_CONTRACT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/group_channel.h"

namespace baton {

using GroupChannels = std::vector<std::unique_ptr<GroupChannel>>;
// The channels of a group, one for each of that many processes, connected.
using MakeGroupChannels = std::function<GroupChannels(uint32_t)>;

class GroupChannelContract : public testing::TestWithParam<MakeGroupChannels> {
};

}  // namespace baton

#endif  // BATON_COMM_TESTING_GROUP_CHANNEL_CONTRACT_H_
