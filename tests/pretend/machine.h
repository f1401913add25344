// The machine behind the device: memory, queues, faults and counters. Knows nothing of tensors.
//
// Nothing runs when it is asked for. Work is put into the queue of a stream and is run, in order, by the host thread
// that waits for it: as late as a real device may be, and the same in every run.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pretend {

constexpr int kGarbage = 0xFF;  // What memory holds before anything is written: NaN in floating dtypes, -1 in integers.

// ---------------------------------------------------------------- devices

void start(int num_devices);
int num_devices();
int current_device();             // Of this thread; a new thread begins with 0, as in CUDA.
int exchange_device(int device);  // Raises on an index that is none.
bool has_context(int device);     // Whether this process has used the device yet.
void use(int device, const char* how);  // Makes the context if this is the first use; raises if the device is lost.

// ---------------------------------------------------------------- memory

// A piece of the device's memory. No memory lies at its address, which is a tensor's data_ptr: the host dies when it
// follows it. The bytes lie elsewhere, and only kernels know where. A queued kernel keeps the blocks it needs, even
// when their tensors are gone.
struct Block {
  int device;
  uintptr_t address;
  size_t size;
  std::unique_ptr<uint8_t[]> bytes;
};
using BlockRef = std::shared_ptr<Block>;

c10::DataPtr allocate(int device, size_t size);  // Raises torch's OutOfMemoryError beyond the limit.
BlockRef block_of(const c10::DataPtr& pointer);  // Null for no bytes.
c10::DataPtr allocate_pinned(size_t size);
std::shared_ptr<void> pinned_block(const void* pointer);  // What keeps pinned memory alive; null if it is not pinned.

void set_memory_limit(int device, size_t bytes);
std::pair<size_t, size_t> memory_info(int device);  // Free and total bytes.
c10::CachingDeviceAllocator::DeviceStats memory_stats(int device);
void reset_memory_stats(int device, bool peak);

// ---------------------------------------------------------------- queues

struct Stream;

// A place in a stream: reached once all work before it has run. This is all an event is.
struct Point {
  Stream* stream = nullptr;
  uint64_t ticket = 0;
  std::chrono::steady_clock::time_point time{};
};

enum class Fault { kNone, kFail, kHang };

struct Work {
  std::string name;
  std::function<void()> run;
  bool is_launch = false;           // A kernel: counted as a launch, and faults are planned by this count.
  std::optional<Point> after = {};  // A place in another stream that must be reached first.
  Fault fault = Fault::kNone;       // What goes wrong when its turn comes; filled in by push.
};

int64_t new_stream(int device);
Stream& stream_at(int device, int64_t id);
int64_t current_stream(int device);  // Of this thread.
int64_t exchange_stream(int device, int64_t id);

Point push(Stream& stream, Work work);
Point end_of(Stream& stream);
void make_wait(Stream& stream, Point point);        // The stream waits, the host does not.
void wait(Point point, const std::string& reason);  // The host waits; counted with the reason and its Python line.
void run_until(Point point);                        // As wait, uncounted: for what a real device would not wait for.
void synchronize(int device, const std::string& reason);
bool poll(Point point);  // Whether it is reached; the device does one piece of work meanwhile.

// ---------------------------------------------------------------- faults and counters

// Has the n-th launch from now (1 is the next) fail, upon which the device is lost, or hang until it is killed.
void plan_fault(int device, Fault fault, int64_t launch);
[[noreturn]] void fail(const std::string& message);  // Raises torch's AcceleratorError.

using Counters = std::map<std::string, std::map<std::string, int64_t>>;  // group -> name -> count
void count(int device, const char* group, const std::string& name, int64_t amount = 1);
Counters counters(int device);
void reset_counters(int device);
void set_place_finder(std::function<std::string()> finder);  // Tells which Python line asks.
bool in_bad_fork();

}  // namespace pretend
