// Makes the machine a device of torch: allocators, current device, streams, events, random numbers; its Python module.
#include "machine.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include "kernels.h"

namespace pretend {
namespace {

using c10::Device;
using c10::DeviceIndex;

constexpr auto kPretend = c10::DeviceType::PrivateUse1;

// ---------------------------------------------------------------- allocators

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override { return pretend::allocate(current_device(), size); }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "pretend: only kernels copy bytes"); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { count(current_device(), "calls", "empty_cache"); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // Queued work keeps its blocks by itself.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override { return memory_stats(device); }
  void resetAccumulatedStats(DeviceIndex device) override { reset_memory_stats(device, false); }
  void resetPeakStats(DeviceIndex device) override { reset_memory_stats(device, true); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override { return memory_info(device); }
} allocator;
REGISTER_ALLOCATOR(kPretend, &allocator);

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override { return allocate_pinned(size); }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
} pinned_allocator;

// ---------------------------------------------------------------- the current device, streams and events

Stream& queue_of(const c10::Stream& stream) { return stream_at(stream.device_index(), stream.id()); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPretend; }
  DeviceIndex deviceCount() const noexcept override { return DeviceIndex(num_devices()); }
  Device getDevice() const override { return Device(kPretend, DeviceIndex(current_device())); }
  Device exchangeDevice(Device device) const override {
    return Device(kPretend, DeviceIndex(exchange_device(device.index())));
  }
  void setDevice(Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { exchange_device(device.index()); }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }

  c10::Stream getStream(Device device) const override { return made(device, current_stream(numbered(device).index())); }
  c10::Stream getDefaultStream(Device device) const override { return made(device, 0); }
  c10::Stream getNewStream(Device device, int) const override {
    return made(device, new_stream(numbered(device).index()));
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return made(stream.device(), exchange_stream(stream.device_index(), stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override { return poll(end_of(queue_of(stream))); }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait(end_of(queue_of(stream)), "stream.synchronize");
  }
  void synchronizeDevice(DeviceIndex device) const override { synchronize(device, "synchronize"); }

  void record(void** event, const c10::Stream& stream, DeviceIndex, c10::EventFlag) const override {
    destroyEvent(*event, 0);
    *event = new Point(end_of(queue_of(stream)));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) make_wait(queue_of(stream), *static_cast<Point*>(event));
  }
  bool queryEvent(void* event) const override { return !event || poll(*static_cast<Point*>(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) wait(*static_cast<Point*>(event), "event.synchronize");
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Point*>(event); }
  double elapsedTime(void* first, void* second, DeviceIndex) const override {
    auto between = static_cast<Point*>(second)->time - static_cast<Point*>(first)->time;
    return std::chrono::duration<double, std::milli>(between).count();
  }

 private:
  Device numbered(Device device) const { return device.has_index() ? device : getDevice(); }
  c10::Stream made(Device device, int64_t id) const { return c10::Stream(c10::Stream::UNSAFE, numbered(device), id); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---------------------------------------------------------------- random numbers

// A generator of the CPU that says it belongs to the device. Each kernel takes a seed from it when it is launched.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex device, at::Generator numbers = at::detail::createCPUGenerator())
      : GeneratorImpl(Device(kPretend, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        numbers_(std::move(numbers)) {}
  void set_current_seed(uint64_t seed) override { numbers_.set_current_seed(seed); }
  uint64_t current_seed() const override { return numbers_.current_seed(); }
  uint64_t seed() override { return numbers_.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "pretend: a generator has no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "pretend: a generator has no offset"); }
  void set_state(const c10::TensorImpl& state) override { numbers_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return numbers_.unsafeGetGeneratorImpl()->get_state();
  }
  uint64_t next() {
    std::lock_guard<std::mutex> lock(mutex_);
    return at::check_generator<at::CPUGeneratorImpl>(numbers_)->random64();
  }

 private:
  Generator* clone_impl() const override { return new Generator(device_.index(), numbers_.clone()); }
  at::Generator numbers_;
};

const at::Generator& default_generator(DeviceIndex device) {
  static auto& generators = *new std::vector<at::Generator>([] {
    std::vector<at::Generator> made;
    for (int i = 0; i < num_devices(); ++i) made.push_back(at::make_generator<Generator>(DeviceIndex(i)));
    return made;
  }());
  return generators.at(device < 0 ? current_device() : device);
}

}  // namespace

at::Generator seeded_for_launch(const std::optional<at::Generator>& given, int device) {
  auto& generator = given && given->defined() ? *given : default_generator(DeviceIndex(device));
  return at::detail::createCPUGenerator(static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->next());
}

// ---------------------------------------------------------------- what torch asks of any accelerator

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  bool hasPrimaryContext(DeviceIndex device) const override { return has_context(device); }
  DeviceIndex deviceCount() const override { return DeviceIndex(num_devices()); }
  DeviceIndex getCurrentDevice() const override { return DeviceIndex(current_device()); }
  void setCurrentDevice(DeviceIndex device) const override { exchange_device(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return DeviceIndex(exchange_device(device)); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  bool isPinnedPtr(const void* pointer) const override { return pinned_block(pointer) != nullptr; }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? DeviceIndex(current_device()) : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    resize_storage(storage, size);
  }
};

std::string ask_python(const pybind11::function& finder) {
  pybind11::gil_scoped_acquire gil;
  return finder().cast<std::string>();
}

}  // namespace
}  // namespace pretend

PYBIND11_MODULE(_machine, module) {
  namespace py = pybind11;
  py::enum_<pretend::Fault>(module, "Fault").value("FAIL", pretend::Fault::kFail).value("HANG", pretend::Fault::kHang);
  module.def("start", [](int num_devices, py::function place) {
    pretend::start(num_devices);
    // Never destroyed: threads may ask while Python ends.
    auto& finder = *new py::function(std::move(place));
    pretend::set_place_finder([&finder] { return pretend::ask_python(finder); });
    at::RegisterPrivateUse1HooksInterface(new pretend::Hooks);
  });
  module.def("num_devices", &pretend::num_devices);
  module.def("has_context", &pretend::has_context);
  module.def("default_generator", [](int device) {
    auto& generator = pretend::default_generator(c10::DeviceIndex(device));
    return py::reinterpret_steal<py::object>(THPGenerator_Wrap(generator));
  });
  module.def("in_bad_fork", &pretend::in_bad_fork);
  module.def("set_memory_limit", &pretend::set_memory_limit);
  module.def("plan_fault", &pretend::plan_fault);
  module.def("counters", &pretend::counters);
  module.def("reset_counters", &pretend::reset_counters);
}
