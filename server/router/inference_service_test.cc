// The public API's answers to good and bad requests, over real gRPC.
#include "server/router/inference_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "base/field_error.h"
#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"
#include "server/edge/version.h"
#include "server/router/router_for_test.h"
#include "server/router/text_executor.h"
#include "server/router/validate.h"

namespace baton {
namespace {

class InferenceServiceTest : public ::testing::Test {
 protected:
  InferenceServiceTest() {
    worker_.SetDecode(GoodDecode());
    v1::GetWorkerInfoResponse info = DemoInfo(v1::WORKER_ROLE_UNIFIED);
    info.set_max_context_tokens(64);
    worker_.SetInfo(info);
    router_ =
        std::make_unique<RouterForTest>(RouterForTest::Options({&worker_}));
    router_->router().pool().WaitUntilReady();
  }
  void SetContext(uint32_t max_context_tokens) {
    v1::GetWorkerInfoResponse info = DemoInfo(v1::WORKER_ROLE_UNIFIED);
    info.set_max_context_tokens(max_context_tokens);
    worker_.SetInfo(info);
    ASSERT_TRUE(WaitFor([&] {
      const absl::StatusOr<ModelBounds> bounds = router_->router().Bounds();
      return bounds.ok() && bounds->max_context_tokens == max_context_tokens;
    }));
  }
  absl::Status Generate(const v1::GenerateRequest& request) {
    return FromGrpcStatus(router_->Generate(request).status);
  }
  absl::Status Tokenize(const v1::TokenizeRequest& request,
                        std::vector<uint32_t>* ids) {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    const grpc::Status status =
        router_->stub().Tokenize(&context, request, &response);
    ids->assign(response.token_ids().begin(), response.token_ids().end());
    return FromGrpcStatus(status);
  }
  absl::Status Detokenize(const v1::DetokenizeRequest& request,
                          std::string* text) {
    grpc::ClientContext context;
    v1::DetokenizeResponse response;
    const grpc::Status status =
        router_->stub().Detokenize(&context, request, &response);
    *text = response.text();
    return FromGrpcStatus(status);
  }

  FakeWorker worker_{DemoInfo(v1::WORKER_ROLE_UNIFIED)};
  std::unique_ptr<RouterForTest> router_;
};

TEST_F(InferenceServiceTest, NamesTheFieldOfABadRequest) {
  v1::GenerateRequest request = IdsRequest(1);
  request.mutable_sampling()->set_top_p(2);
  const absl::Status status = Generate(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorField(status), "sampling.top_p");
  EXPECT_EQ(worker_.requests().size(), 0u);
  EXPECT_EQ(router_->Metric("baton_requests_total{role=\"router\","
                            "outcome=\"invalid_argument\"}"),
            1);
}

TEST_F(InferenceServiceTest, AcceptsAPromptUpToOneLessThanTheContext) {
  for (const auto& [length, ok] :
       {std::pair(63, true), {64, false}, {65, false}, {640, false}}) {
    v1::GenerateRequest request;
    for (int i = 0; i < length; ++i) {
      request.mutable_prompt()->mutable_token_ids()->add_ids(20);
    }
    const GenerateOutcome outcome = router_->Generate(request);
    const absl::Status status = FromGrpcStatus(outcome.status);
    EXPECT_EQ(status.ok(), ok) << length;
    if (ok) {
      EXPECT_EQ(outcome.token_ids.size(), 1u) << "all that has room";
      EXPECT_EQ(outcome.finished->finish_reason(), v1::FINISH_REASON_LENGTH);
    } else {
      EXPECT_EQ(ErrorField(status), "prompt") << length;
    }
  }
}

TEST_F(InferenceServiceTest, RefusesTextThatIsTooLongBeforeAndAfterTokenising) {
  v1::GenerateRequest request = IdsRequest(1);
  std::string* const text =
      request.mutable_prompt()->mutable_text()->mutable_text();
  for (int i = 0; i < 100; ++i) text->append("?!");
  EXPECT_EQ(ErrorField(Generate(request)), "prompt") << "too many tokens";
  text->assign(1'000'000, 'x');
  EXPECT_EQ(ErrorField(Generate(request)), "prompt.text.text");
}

TEST_F(InferenceServiceTest, GeneratesFromTextAndChat) {
  v1::GenerateRequest text = IdsRequest(2);
  text.mutable_prompt()->mutable_text()->set_text("Hello");
  EXPECT_TRUE(Generate(text).ok());
  ASSERT_EQ(worker_.requests().size(), 1u);
  EXPECT_EQ(worker_.requests()[0].token_ids(0), DemoText().tokenizer->bos_id());
  v1::GenerateRequest chat = IdsRequest(2);
  v1::ChatMessage* const message =
      chat.mutable_prompt()->mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Hello");
  EXPECT_TRUE(Generate(chat).ok());
  message->set_role("wizard");
  EXPECT_EQ(ErrorField(Generate(chat)), "prompt.chat.messages[0].role");
}

TEST_F(InferenceServiceTest, TakesLongTextsOnAThreadOfTheirOwn) {
  SetContext(4096);
  std::string text;
  while (text.size() <= TextExecutor::kMaxInlineBytes) text += " something";
  v1::TokenizeRequest tokenize;
  tokenize.mutable_prompt()->mutable_text()->set_text(text);
  std::vector<uint32_t> ids;
  ASSERT_TRUE(Tokenize(tokenize, &ids).ok());
  ASSERT_LT(ids.size(), 4096u);
  v1::GenerateRequest request = IdsRequest(1);
  *request.mutable_prompt() = tokenize.prompt();
  ASSERT_TRUE(Generate(request).ok());
  EXPECT_EQ(worker_.requests()[0].token_ids_size(),
            static_cast<int>(ids.size()));
  request.mutable_prompt()->mutable_text()->mutable_text()->append(text + text);
  EXPECT_EQ(ErrorField(Generate(request)), "prompt") << "too many tokens";
}

TEST_F(InferenceServiceTest, EndsCallsThatAreCancelledWhileTheirTextWaits) {
  SetContext(4096);
  // A call that has passed the text's thread stays until it is cancelled.
  worker_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    stream->WaitUntilCancelled();
    return grpc::Status::CANCELLED;
  });
  v1::GenerateRequest request = IdsRequest(1);
  std::string* const text =
      request.mutable_prompt()->mutable_text()->mutable_text();
  while (text->size() < 20'000) *text += " something";
  for (int i = 0; i < 30; ++i) {
    grpc::ClientContext context;
    const auto reader = router_->stub().Generate(&context, request);
    if (i % 2 == 0) {
      EXPECT_TRUE(WaitFor([&] { return router_->gate().inside() > 0; }));
    }
    context.TryCancel();
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(WaitFor([&] { return router_->gate().inside() == 0; }));
  EXPECT_EQ(router_->router().admission().num_running(), 0u);
}

TEST_F(InferenceServiceTest, MakesNoIdsOfATextThatNobodyWaitsForAnyMore) {
  SetContext(4096);
  v1::GenerateRequest request = IdsRequest(1);
  std::string* const text =
      request.mutable_prompt()->mutable_text()->mutable_text();
  while (text->size() <= TextExecutor::kMaxInlineBytes) *text += " something";
  const auto num_ids = [&] {
    return router_->Metric("baton_prompt_tokens_total{role=\"router\"}");
  };
  EXPECT_TRUE(Generate(request).ok());
  const double before = num_ids();
  EXPECT_GT(before, 0);
  absl::Notification go;  // Until then, the texts' thread has other work.
  EXPECT_TRUE(router_->text_executor()
                  .Run(text->size(), [&] { go.WaitForNotification(); })
                  .ok());
  grpc::ClientContext context;
  const auto reader = router_->stub().Generate(&context, request);
  EXPECT_TRUE(WaitFor([&] { return router_->gate().inside() == 1; }));
  router_->gate().Cut();
  go.Notify();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(num_ids(), before);
}

TEST_F(InferenceServiceTest, DrawsASeedAndTellsIt) {
  const GenerateOutcome first = router_->Generate(IdsRequest(1));
  const GenerateOutcome second = router_->Generate(IdsRequest(1));
  ASSERT_TRUE(first.finished.has_value());
  ASSERT_TRUE(second.finished.has_value());
  EXPECT_NE(first.finished->seed(), second.finished->seed());
  EXPECT_EQ(worker_.requests()[0].sampling().seed(), first.finished->seed());
}

TEST_F(InferenceServiceTest, TokenizesAsGenerateWould) {
  v1::TokenizeRequest request;
  request.mutable_prompt()->mutable_text()->set_text("Hello world");
  std::vector<uint32_t> ids;
  ASSERT_TRUE(Tokenize(request, &ids).ok());
  v1::GenerateRequest generate = IdsRequest(1);
  *generate.mutable_prompt() = request.prompt();
  ASSERT_TRUE(Generate(generate).ok());
  const v1::WorkerRequest sent = worker_.requests()[0];
  EXPECT_EQ(ids, std::vector<uint32_t>(sent.token_ids().begin(),
                                       sent.token_ids().end()));
}

TEST_F(InferenceServiceTest, RefusesToTokenizeIdsAndTooMuch) {
  v1::TokenizeRequest request;
  std::vector<uint32_t> ids;
  EXPECT_EQ(ErrorField(Tokenize(request, &ids)), "prompt");
  request.mutable_prompt()->mutable_token_ids()->add_ids(1);
  EXPECT_EQ(ErrorField(Tokenize(request, &ids)), "prompt");
  request.mutable_prompt()->mutable_text()->set_text(
      std::string(kMaxTokenizeBytes + 1, 'a'));
  EXPECT_EQ(ErrorField(Tokenize(request, &ids)), "prompt.text.text");
  SetContext(kMaxTokenizeBytes);
  EXPECT_EQ(ErrorField(Tokenize(request, &ids)), "prompt");
}

TEST_F(InferenceServiceTest, TokenizesWithinTheLimitsOfGenerate) {
  SetContext(2 * kMaxChatMessages);
  v1::TokenizeRequest request;
  v1::ChatPrompt* const chat = request.mutable_prompt()->mutable_chat();
  while (chat->messages_size() < kMaxChatMessages) {
    chat->add_messages()->set_role("user");
  }
  std::vector<uint32_t> ids;
  EXPECT_TRUE(Tokenize(request, &ids).ok());
  EXPECT_GE(ids.size(), static_cast<size_t>(kMaxChatMessages));
  chat->add_messages()->set_role("user");
  EXPECT_EQ(ErrorField(Tokenize(request, &ids)), "prompt.chat.messages");
  chat->clear_messages();
  chat->add_messages()->set_role("wizard");
  EXPECT_EQ(ErrorField(Tokenize(request, &ids)),
            "prompt.chat.messages[0].role");
}

TEST_F(InferenceServiceTest, TurnsIdsIntoText) {
  v1::DetokenizeRequest request;
  request.add_token_ids(0);  // BOS
  for (uint32_t id : LetterTokens(0, 3)) request.add_token_ids(id);
  std::string text;
  ASSERT_TRUE(Detokenize(request, &text).ok());
  EXPECT_EQ(text, "abc");
  request.set_skip_special_tokens(false);
  ASSERT_TRUE(Detokenize(request, &text).ok());
  EXPECT_EQ(text, "<｜begin▁of▁sentence｜>abc");
  request.add_token_ids(4096);
  EXPECT_EQ(ErrorField(Detokenize(request, &text)), "token_ids[4]");
}

TEST_F(InferenceServiceTest, RefusesToDetokenizeTooMuch) {
  v1::DetokenizeRequest request;
  for (int i = 0; i <= kMaxDetokenizeIds; ++i) request.add_token_ids(20);
  std::string text;
  EXPECT_EQ(ErrorField(Detokenize(request, &text)), "token_ids");
}

TEST_F(InferenceServiceTest, SaysWhatItServes) {
  grpc::ClientContext context;
  v1::GetModelInfoResponse info;
  ASSERT_TRUE(router_->stub().GetModelInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.model_name(), "demo");
  EXPECT_EQ(info.vocab_size(), 4096u);
  EXPECT_EQ(info.max_context_tokens(), 64u);
  EXPECT_EQ(info.fingerprint(), "fingerprint-1");
  EXPECT_EQ(info.text_hash(), DemoText().text_hash);
  EXPECT_TRUE(info.chat_supported());
  EXPECT_EQ(info.version(), kBatonVersion);
}

TEST_F(InferenceServiceTest, RefusesNewRequestsWhileDraining) {
  router_->gate().Close();
  const absl::Status status = Generate(IdsRequest(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryDelay(status).has_value());
}

}  // namespace
}  // namespace baton
