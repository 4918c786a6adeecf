#include "csrc/host/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace jax_w4a8::host {
namespace {

// Outlives the call: a helper that the pool starts late finds no task left, and touches nothing
// else.
struct Work {
  std::function<void(int64_t)> task;
  int64_t count;
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  std::condition_variable all_done;
  int64_t done = 0;

  void run() {
    int64_t ran = 0;
    for (int64_t index; (index = next.fetch_add(1)) < count; ++ran) task(index);
    if (ran == 0) return;
    std::lock_guard lock(mutex);
    done += ran;
    if (done == count) all_done.notify_all();
  }
};

}  // namespace

void parallel_for(xla::ffi::ThreadPool& pool, int64_t count, std::function<void(int64_t)> task) {
  auto work = std::make_shared<Work>();
  work->task = std::move(task);
  work->count = count;
  const int64_t helpers = std::min(count, pool.num_threads()) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([work] { work->run(); });
  work->run();
  std::unique_lock lock(work->mutex);
  work->all_done.wait(lock, [&] { return work->done == work->count; });
}

}  // namespace jax_w4a8::host
