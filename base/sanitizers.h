// BATON_ASAN, BATON_TSAN: which sanitizer this is compiled for, g++ or clang.
#ifndef BATON_BASE_SANITIZERS_H_
#define BATON_BASE_SANITIZERS_H_

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BATON_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define BATON_TSAN 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#define BATON_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define BATON_TSAN 1
#endif

#endif  // BATON_BASE_SANITIZERS_H_
