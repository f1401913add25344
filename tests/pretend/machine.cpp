#include "machine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace pretend {

struct Stream {
  int device;
  std::deque<Work> queue;
  uint64_t pushed = 0;
  uint64_t done = 0;
};

namespace {

constexpr uintptr_t kRange = uintptr_t(1) << 40;  // Addresses of a device. None is given twice, so none is mistaken.
constexpr size_t kQueueDepth = 1024;              // As many launches as CUDA lets the host run ahead.

struct Device {
  size_t limit = size_t(8) << 30;
  uintptr_t next_address = 0;
  bool has_context = false;
  std::string lost;  // Why, or empty.
  int64_t num_launches = 0;  // Since the start; the counters may be reset.
  std::map<int64_t, Fault> fault_at_launch;
  std::deque<Stream> streams;  // A deque, as streams are referred to.
  c10::CachingDeviceAllocator::DeviceStats stats;
  Counters counters;
};

// Held while anything below is read or changed, and while work runs. A thread that holds it never asks for the GIL.
std::mutex& mutex = *new std::mutex;
using Lock = std::unique_lock<std::mutex>;
std::condition_variable& never = *new std::condition_variable;
// Never destroyed, as tensors may outlive them when the process ends.
std::vector<Device>& devices = *new std::vector<Device>;
auto& pinned = *new std::map<uintptr_t, std::pair<size_t, std::weak_ptr<void>>>;  // By address: bytes, and their owner.
std::function<std::string()> find_place;
bool forked = false;

thread_local int this_device = 0;
thread_local std::map<int, int64_t> this_stream;

// ---------------------------------------------------------------- memory that the host cannot touch

uintptr_t first_address = 0;
struct sigaction previous_action;

void on_fault(int, siginfo_t* info, void*) {
  auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address >= first_address && address < first_address + devices.size() * kRange) {
    char line[80];
    int device = int((address - first_address) / kRange);
    int length = std::snprintf(line, sizeof line, "the host touched memory of pretend:%d\n", device);
    [[maybe_unused]] auto written = write(STDERR_FILENO, line, length);
  }
  // Whoever handled it before (Python's faulthandler, if on) does so when the access is tried again.
  sigaction(SIGSEGV, &previous_action, nullptr);
}

void reserve_addresses() {
  void* range = mmap(nullptr, devices.size() * kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(range != MAP_FAILED, "pretend: no room for the devices' addresses");
  first_address = reinterpret_cast<uintptr_t>(range);
  for (size_t i = 0; i < devices.size(); ++i) devices[i].next_address = first_address + i * kRange;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &previous_action);
}

std::string in_mib(size_t bytes) {
  return c10::str(bytes, " bytes (", bytes >> 20, " MiB)");
}

void count_memory(Device& device, int64_t blocks, int64_t bytes) {
  auto change = [](c10::CachingAllocator::StatArray& stat, int64_t amount) {
    auto& all = stat[size_t(c10::CachingAllocator::StatType::AGGREGATE)];
    amount > 0 ? all.increase(amount) : all.decrease(-amount);
  };
  auto& stats = device.stats;
  for (auto* stat : {&stats.allocation, &stats.active}) change(*stat, blocks);
  for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) change(*stat, bytes);
}

size_t allocated_bytes(const Device& device) {
  return device.stats.allocated_bytes[size_t(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

// The tensor is gone: its bytes count no more, as with a caching allocator, though queued work may still hold them.
void release(void* context) {
  std::unique_ptr<BlockRef> block(static_cast<BlockRef*>(context));
  Lock lock(mutex);
  count_memory(devices[(*block)->device], -1, -int64_t((*block)->size));
}

void release_pinned(void* context) {
  delete static_cast<std::shared_ptr<void>*>(context);
}

// ---------------------------------------------------------------- the first use of a device, and its loss

void check_not_lost(const Device& device) {
  if (!device.lost.empty()) fail(device.lost);
}

void use(Lock&, int index, const char* how) {
  TORCH_CHECK(!forked, "Cannot re-initialize pretend in forked subprocess. Use the 'spawn' start method");
  auto& device = devices.at(index);
  check_not_lost(device);
  if (device.has_context) return;
  device.has_context = true;
  char thread[16] = "";
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  ++device.counters["contexts"][c10::str(how, " in thread ", thread)];
}

[[noreturn]] void lose(Stream& stream, const std::string& why) {
  auto& device = devices[stream.device];
  device.lost = c10::str("pretend error: ", why, " (pretend:", stream.device, "). The device is lost to this process.");
  for (auto& other : device.streams) {
    other.queue.clear();
    other.done = other.pushed;
  }
  fail(device.lost);
}

// ---------------------------------------------------------------- running what is queued

bool is_reached(const Point& point) {
  return point.stream == nullptr || point.stream->done >= point.ticket;
}

void run_next(Stream& stream) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  ++stream.done;
  try {
    work.run();
  } catch (const c10::Error& error) {
    // What a kernel finds wrong with its data comes out at some later call, and is the end of the device.
    lose(stream, c10::str("device-side assert triggered in ", work.name, ": ", error.what_without_backtrace()));
  }
}

void run_until(Lock& lock, const Point& point) {
  while (!is_reached(point)) {
    auto& stream = *point.stream;
    auto& next = stream.queue.front();
    if (next.after && !is_reached(*next.after)) {
      run_until(lock, Point(*next.after));
      continue;  // The lock may have been let go meanwhile.
    }
    if (next.fault == Fault::kFail) lose(stream, c10::str("unspecified launch failure in ", next.name));
    if (next.fault == Fault::kHang) never.wait(lock, [] { return false; });  // Other devices go on: the lock is let go.
    run_next(stream);
  }
}

}  // namespace

// ---------------------------------------------------------------- devices

void start(int num_devices) {
  TORCH_CHECK(devices.empty(), "pretend: already started");
  devices.resize(num_devices);
  for (int i = 0; i < num_devices; ++i) devices[i].streams.push_back({i});
  reserve_addresses();
  pthread_atfork(nullptr, nullptr, [] {
    for (auto& device : devices) forked |= device.has_context;
  });
}

int num_devices() { return int(devices.size()); }
int current_device() { return this_device; }

int exchange_device(int device) {
  if (device < 0 || device >= num_devices()) fail("pretend error: invalid device ordinal");
  return std::exchange(this_device, device);
}

bool has_context(int device) {
  Lock lock(mutex);
  return devices.at(device).has_context;
}

void use(int device, const char* how) {
  Lock lock(mutex);
  use(lock, device, how);
}

bool in_bad_fork() { return forked; }

// ---------------------------------------------------------------- memory

c10::DataPtr allocate(int index, size_t size) {
  c10::Device where(c10::DeviceType::PrivateUse1, index);
  Lock lock(mutex);
  use(lock, index, "allocation");
  if (size == 0) return {nullptr, where};
  auto& device = devices[index];
  size_t used = allocated_bytes(device);
  if (used + size > device.limit) {
    ++device.stats.num_ooms;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "pretend out of memory. Tried to allocate ", in_mib(size), ". pretend:", index,
        " has a total capacity of ", in_mib(device.limit), " of which ", in_mib(device.limit - used), " is free.");
  }
  auto block = std::make_shared<Block>(index, device.next_address, size, std::make_unique<uint8_t[]>(size));
  std::memset(block->bytes.get(), kGarbage, size);
  device.next_address += (size + 511) / 512 * 512;
  TORCH_CHECK(device.next_address < first_address + (index + 1) * kRange, "pretend: the device has no addresses left");
  count_memory(device, 1, int64_t(size));
  return {reinterpret_cast<void*>(block->address), new BlockRef(block), &release, where};
}

BlockRef block_of(const c10::DataPtr& pointer) {
  return pointer.get_context() ? *static_cast<BlockRef*>(pointer.get_context()) : nullptr;
}

c10::DataPtr allocate_pinned(size_t size) {
  Lock lock(mutex);
  use(lock, this_device, "pinned memory");
  if (size == 0) return {nullptr, c10::kCPU};
  void* bytes = std::aligned_alloc(64, (size + 63) / 64 * 64);
  auto owner = std::shared_ptr<void>(bytes, [](void* memory) { std::free(memory); });
  pinned[reinterpret_cast<uintptr_t>(bytes)] = {size, owner};  // Replaces one that was freed.
  return {bytes, new std::shared_ptr<void>(owner), &release_pinned, c10::kCPU};
}

std::shared_ptr<void> pinned_block(const void* pointer) {
  Lock lock(mutex);
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto found = pinned.upper_bound(address);
  if (found == pinned.begin()) return nullptr;
  --found;
  return address < found->first + found->second.first ? found->second.second.lock() : nullptr;
}

void set_memory_limit(int device, size_t bytes) {
  Lock lock(mutex);
  devices.at(device).limit = bytes;
}

std::pair<size_t, size_t> memory_info(int index) {
  Lock lock(mutex);
  use(lock, index, "memory info");
  auto& device = devices[index];
  return {device.limit - std::min(device.limit, allocated_bytes(device)), device.limit};
}

c10::CachingDeviceAllocator::DeviceStats memory_stats(int device) {
  Lock lock(mutex);
  return devices.at(device).stats;
}

void reset_memory_stats(int index, bool peak) {
  Lock lock(mutex);
  auto& all = devices.at(index).stats;
  for (auto* stats : {&all.allocation, &all.active, &all.allocated_bytes, &all.reserved_bytes, &all.active_bytes})
    for (auto& stat : *stats) peak ? stat.reset_peak() : stat.reset_accumulated();
}

// ---------------------------------------------------------------- queues

int64_t new_stream(int device) {
  Lock lock(mutex);
  use(lock, device, "stream");
  auto& streams = devices[device].streams;
  streams.push_back({device});
  return int64_t(streams.size()) - 1;
}

Stream& stream_at(int device, int64_t id) {
  Lock lock(mutex);
  return devices.at(device).streams.at(id);
}

int64_t current_stream(int device) {
  auto found = this_stream.find(device);
  return found == this_stream.end() ? 0 : found->second;
}

int64_t exchange_stream(int device, int64_t id) { return std::exchange(this_stream[device], id); }

Point end_of(Stream& stream) {
  Lock lock(mutex);
  return {&stream, stream.pushed, std::chrono::steady_clock::now()};
}

Point push(Stream& stream, Work work) {
  Lock lock(mutex);
  auto& device = devices[stream.device];
  use(lock, stream.device, work.name.c_str());
  if (work.is_launch) {
    ++device.counters["launches"][work.name];
    if (auto planned = device.fault_at_launch.extract(++device.num_launches)) work.fault = planned.mapped();
  }
  stream.queue.push_back(std::move(work));
  Point point{&stream, ++stream.pushed};
  if (stream.queue.size() > kQueueDepth) run_until(lock, {&stream, stream.done + 1});
  return point;
}

void make_wait(Stream& stream, Point point) {
  push(stream, {"wait for event", [] {}, false, point});
}

void run_until(Point point) {
  Lock lock(mutex);
  if (point.stream) check_not_lost(devices[point.stream->device]);
  run_until(lock, point);
}

void wait(Point point, const std::string& reason) {
  if (!point.stream) return;
  count(point.stream->device, "waits", c10::str(reason, " at ", find_place ? find_place() : "?"));
  run_until(point);
}

void synchronize(int device, const std::string& reason) {
  count(device, "waits", c10::str(reason, " at ", find_place ? find_place() : "?"));
  Lock lock(mutex);
  use(lock, device, "synchronize");
  for (auto& stream : devices[device].streams) run_until(lock, {&stream, stream.pushed});
}

bool poll(Point point) {
  Lock lock(mutex);
  if (is_reached(point)) return true;
  check_not_lost(devices[point.stream->device]);
  if (point.stream->queue.front().fault == Fault::kHang) return false;
  run_until(lock, {point.stream, point.stream->done + 1});
  return is_reached(point);
}

// ---------------------------------------------------------------- faults and counters

void fail(const std::string& message) {
  throw c10::AcceleratorError({__func__, __FILE__, uint32_t(__LINE__)}, 719, message);
}

void plan_fault(int index, Fault fault, int64_t launch) {
  Lock lock(mutex);
  auto& device = devices.at(index);
  device.fault_at_launch[device.num_launches + launch] = fault;
}

void count(int device, const char* group, const std::string& name, int64_t amount) {
  Lock lock(mutex);
  devices.at(device).counters[group][name] += amount;
}

Counters counters(int device) {
  Lock lock(mutex);
  return devices.at(device).counters;
}

void reset_counters(int device) {
  Lock lock(mutex);
  devices.at(device).counters.clear();
}

void set_place_finder(std::function<std::string()> finder) { find_place = std::move(finder); }

}  // namespace pretend
