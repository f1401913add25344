// Every operator of the device. An operator is queued: torch's meta kernels say the shapes of what it returns, so that
// the host can go on; the CPU's kernel computes it when its turn comes.
#include "kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <set>

#include "machine.h"

namespace pretend {
namespace {

using at::IValue;
using at::Tensor;
using c10::OperatorHandle;
using torch::jit::Stack;

bool is_here(const Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

Stream& queue_of(int device) { return stream_at(device, current_stream(device)); }
Stream& queue_of(const Tensor& tensor) { return queue_of(tensor.device().index()); }

// ---------------------------------------------------------------- the same tensor, seen from elsewhere

// A number written in Python promotes dtypes less than a tensor does; what stands for it has to as well.
Tensor marked_as(const Tensor& tensor, Tensor same) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) same.unsafeGetTensorImpl()->set_wrapped_number(true);
  return same;
}

// Returns a CPU tensor over the device's bytes; only work in a queue may look into it.
Tensor as_cpu(const Tensor& tensor) {
  if (!is_here(tensor)) return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype());
  auto block = block_of(tensor.storage().data_ptr());
  if (!block) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto* first = block->bytes.get() + tensor.storage_offset() * tensor.element_size();
  auto same = at::from_blob(first, tensor.sizes(), tensor.strides(), [block](void*) {}, options);
  return marked_as(tensor, same);
}

Tensor as_meta(const Tensor& tensor) {
  if (!is_here(tensor)) return tensor;
  auto same = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  return marked_as(tensor, same);
}

// Returns a value with each tensor in it replaced.
template <typename Replace>
IValue with_tensors(const IValue& value, const Replace& replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(replace(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional(replace(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

// Calls an operator on tensors of the CPU or of no device, whatever mode the thread that comes to it is in.
void call(const OperatorHandle& op, Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::DispatchKeySet python_modes({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  c10::impl::ExcludeDispatchKeyGuard no_modes(c10::autocast_dispatch_keyset | python_modes);
  op.callBoxed(stack);
}

// ---------------------------------------------------------------- launching an operator

struct Launch {
  const OperatorHandle& op;
  Stack arguments;
  int device;

  const std::string& name() const { return op.schema().name(); }
  const c10::Argument& declared(size_t i) const { return op.schema().arguments()[i]; }
  bool is_generator(size_t i) const { return declared(i).type()->str().find("Generator") == 0; }

  // Returns which argument a result is, for operators that write into one; none for a new tensor.
  std::optional<size_t> written_argument(size_t result) const {
    auto* alias = op.schema().returns()[result].alias_info();
    if (!alias) return std::nullopt;
    TORCH_CHECK(alias->isWrite(), "pretend: ", name(), " returns a view, which only kernels.cpp can make");
    for (size_t i = 0; i < arguments.size(); ++i)
      if (declared(i).alias_info() && *declared(i).alias_info() == *alias) return i;
    return std::nullopt;
  }
};

constexpr char kMixed[] = "Expected all tensors to be on the same device, but found at least two devices, ";

int device_of(const OperatorHandle& op, const Stack& arguments) {
  std::optional<c10::Device> found;
  for (const auto& value : arguments) {
    with_tensors(value, [&](const Tensor& tensor) {
      if (!is_here(tensor)) return tensor;
      bool is_same = !found || *found == tensor.device();
      TORCH_CHECK(is_same, kMixed, *found, " and ", tensor.device(), "! (", op.schema().name(), ")");
      found = tensor.device();
      return tensor;
    });
    if (!found && value.isDevice()) found = value.toDevice();
  }
  return found && found->has_index() ? found->index() : current_device();
}

// Brings over what a GPU's kernels take from the host, single numbers and indices, and refuses the rest.
void bring_over(Launch& launch) {
  c10::Device device(c10::DeviceType::PrivateUse1, c10::DeviceIndex(launch.device));
  for (auto& value : launch.arguments) {
    bool is_index = value.isOptionalTensorList();
    value = with_tensors(value, [&](const Tensor& tensor) {
      if (!tensor.defined() || is_here(tensor)) return tensor;
      if (is_index) return tensor.to(device);
      bool is_number = tensor.is_cpu() && tensor.dim() == 0;
      TORCH_CHECK(is_number, kMixed, device, " and ", tensor.device(), "! (", launch.name(), ")");
      return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : tensor.detach().clone();
    });
  }
}

// Returns the arguments as the meta kernel takes them, and as the CPU's does when the turn comes.
Stack for_meta(const Launch& launch) {
  Stack stack;
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    const auto& value = launch.arguments[i];
    if (launch.is_generator(i)) stack.emplace_back();
    else if (value.isDevice()) stack.emplace_back(c10::Device(c10::kMeta));
    else stack.push_back(with_tensors(value, as_meta));
  }
  return stack;
}

Stack for_cpu(const Launch& launch) {
  Stack stack;
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    const auto& value = launch.arguments[i];
    if (launch.is_generator(i)) stack.emplace_back(seeded_for_launch(value.toOptional<at::Generator>(), launch.device));
    else if (value.isDevice()) stack.emplace_back(c10::Device(c10::kCPU));
    else stack.push_back(with_tensors(value, as_cpu));
  }
  return stack;
}

Tensor empty_here(const Tensor& like, int device) {
  if (!like.defined()) return like;
  c10::Device here(c10::DeviceType::PrivateUse1, c10::DeviceIndex(device));
  return at::empty_strided(like.sizes(), like.strides(), like.options().device(here));
}

void reshape_like(const Tensor& tensor, const Tensor& like) {
  if (tensor.sizes() == like.sizes()) return;
  size_t needed = at::detail::computeStorageNbytes(
      like.sizes(), like.strides(), tensor.element_size(), tensor.storage_offset());
  if (needed > tensor.storage().nbytes()) resize_storage(tensor.storage(), needed);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
}

// Copies what a kernel of the CPU returned into the device's memory.
void deliver(const IValue& made, const IValue& place) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<Tensor> from, to;
  with_tensors(made, [&](const Tensor& tensor) { return from.push_back(tensor), tensor; });
  with_tensors(place, [&](const Tensor& tensor) { return to.push_back(tensor), tensor; });
  for (size_t i = 0; i < to.size(); ++i)
    if (to[i].defined()) to[i].copy_(from[i]);
}

// Runs an operator at once, all work before it first: its results are known by running it alone. Without a reason, a
// real device would not make the host wait, and only a missing meta kernel does.
Stack run_now(const Launch& launch, const std::string& reason) {
  auto stack = std::make_shared<Stack>(for_cpu(launch));
  for (size_t i = 0; i < stack->size(); ++i)  // A tensor over the device's bytes cannot grow; one of the CPU's own can.
    if (launch.declared(i).is_out()) (*stack)[i] = at::empty({0}, (*stack)[i].toTensor().options());
  auto error = std::make_shared<std::exception_ptr>();
  auto run = [op = launch.op, stack, error] {
    try {
      call(op, *stack);
    } catch (...) {
      *error = std::current_exception();
    }
  };
  auto end = push(queue_of(launch.device), {launch.name(), run, true});
  if (reason.empty()) {
    count(launch.device, "run at once", launch.name());
    run_until(end);
  } else {
    wait(end, reason);
  }
  if (*error) std::rethrow_exception(*error);
  Stack results;
  for (size_t i = 0; i < stack->size(); ++i) {
    const auto& made = (*stack)[i];
    auto written = launch.written_argument(i);
    if (!written) {
      results.push_back(with_tensors(made, [&](const Tensor& tensor) { return empty_here(tensor, launch.device); }));
    } else {
      results.push_back(launch.arguments[*written]);
      if (!launch.declared(*written).is_out()) continue;
      reshape_like(results.back().toTensor(), made.toTensor());
    }
    deliver(made, with_tensors(results.back(), as_cpu));
  }
  return results;
}

// Queues an operator and returns its results, which hold nothing yet.
Stack run_later(const Launch& launch) {
  Stack metas = for_meta(launch);
  Stack shapes = metas;
  try {
    call(launch.op, shapes);
  } catch (const std::exception&) {
    return run_now(launch, "");  // No meta kernel; or wrong arguments, of which the CPU's kernel tells.
  }
  for (size_t i = 0; i < metas.size(); ++i)
    if (launch.declared(i).is_out()) reshape_like(launch.arguments[i].toTensor(), metas[i].toTensor());
  Stack results, places;
  for (size_t i = 0; i < shapes.size(); ++i) {
    auto written = launch.written_argument(i);
    results.push_back(written ? launch.arguments[*written] : with_tensors(shapes[i], [&](const Tensor& tensor) {
      return empty_here(tensor, launch.device);
    }));
    places.push_back(written ? IValue() : with_tensors(results.back(), as_cpu));
  }
  auto run = [op = launch.op, stack = for_cpu(launch), places]() mutable {
    call(op, stack);
    for (size_t i = 0; i < places.size(); ++i) deliver(stack[i], places[i]);
  };
  push(queue_of(launch.device), {launch.name(), run, true});
  return results;
}

// Returns why the host has to wait for an operator's results on any device, or nothing.
std::string reason_to_wait(const Launch& launch) {
  static const std::set<std::string> shaped_by_data = {
      "aten::nonzero",    "aten::masked_select",      "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::bincount"};
  const auto& name = launch.name();
  if (name == "aten::_local_scalar_dense") return "item";
  if (name == "aten::repeat_interleave" && launch.arguments.back().isNone()) return name;
  for (const auto& result : launch.op.schema().returns()) {
    const auto& type = *result.type();
    if (!type.isSubtypeOf(*c10::TensorType::get()) && type.kind() != c10::ListType::Kind) return name;
  }
  bool has_mask = false;
  for (const auto& value : launch.arguments)
    if (value.isOptionalTensorList())
      with_tensors(value, [&](const Tensor& index) { return has_mask |= index.scalar_type() == at::kBool, index; });
  return has_mask || shaped_by_data.count(name) ? name : "";
}

void launch(const OperatorHandle& op, Stack* stack) {
  auto arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  Launch launch{op, arguments, device_of(op, arguments)};
  bool is_known = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  TORCH_CHECK_NOT_IMPLEMENTED(is_known, "Could not run '", launch.name(), "' with arguments from pretend.");
  use(launch.device, "launch");
  bring_over(launch);
  auto reason = reason_to_wait(launch);
  for (auto& result : reason.empty() ? run_later(launch) : run_now(launch, reason)) stack->push_back(std::move(result));
}

OperatorHandle find(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

// torch asks devices other than the CPU and CUDA for convolutions by these names.
void convolution(const OperatorHandle&, Stack* stack) { launch(find("aten::convolution"), stack); }

void convolution_backward(const OperatorHandle&, Stack* stack) {
  auto first = stack->end() - 10;
  auto channels = first[0].toTensor().size(1);
  stack->insert(first + 3, std::vector<int64_t>{channels});  // The bias' shape.
  launch(find("aten::convolution_backward"), stack);
}

// Devices count integers, the CPU only floating numbers.
void histogram(const OperatorHandle& op, Stack* stack) {
  auto& input = torch::jit::peek(*stack, 0, 4);
  auto dtype = input.toTensor().scalar_type();
  if (c10::isIntegralType(dtype, false)) input = input.toTensor().to(at::kFloat);
  launch(op, stack);
  stack->back() = stack->back().toTensor().to(dtype);
}

// The CPU's kernel of this name takes its numbers from the CPU's generator, and when it runs.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, at::kBool)};
  auto mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input * mask * (p == 1 ? 0 : 1 / (1 - p)), mask};
}

// CUDA multiplies half precision into float32 without a copy, the CPU does not.
Tensor mixed_product(const Tensor& self, const Tensor& other, at::ScalarType dtype) {
  return at::mm(self.to(dtype), other.to(dtype));
}

// ---------------------------------------------------------------- memory

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_generic(
      size, c10::GetAllocator(c10::DeviceType::PrivateUse1), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_strided_generic(
      size, stride, c10::GetAllocator(c10::DeviceType::PrivateUse1), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  reshape_like(self, at::empty(size, self.options().device(at::kMeta).memory_format(format)));
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(std::move(source));
  tensor->set_storage_offset(offset);
  stride.data() ? tensor->set_sizes_and_strides(size, stride) : tensor->set_sizes_contiguous(size);
  return self;
}

// ---------------------------------------------------------------- copies

void count_copy(int device, const char* direction, bool is_pinned, bool is_queued, size_t bytes) {
  auto kind = c10::str(direction, is_pinned ? ", pinned" : ", pageable", is_queued ? ", queued" : ", waited for");
  count(device, "copies", kind);
  count(device, "copied bytes", kind, int64_t(bytes));
}

// Returns a host tensor whose memory, if pinned, stays until the queue is done with it: torch's allocators see to that.
Tensor kept_alive(const Tensor& host) {
  auto owner = pinned_block(host.data_ptr());
  if (!owner) return host;
  return at::from_blob(host.data_ptr(), host.sizes(), host.strides(), [owner](void*) {}, host.options());
}

void copy_between_host_and_device(const Tensor& from, const Tensor& to, bool non_blocking) {
  bool to_host = is_here(from);
  const auto& host = to_host ? to : from;
  auto& queue = queue_of(to_host ? from : to);
  int device = (to_host ? from : to).device().index();
  bool is_pinned = host.numel() > 0 && pinned_block(host.data_ptr()) != nullptr;
  // The device's copy engine moves plain bytes; anything else torch would first rearrange in memory that is not pinned.
  bool is_plain = host.is_contiguous() && (to_host || from.dtype() == to.dtype());
  bool is_queued = non_blocking && is_pinned && is_plain;
  const char* direction = to_host ? "device to host" : "host to device";
  count_copy(device, direction, is_pinned, is_queued, host.nbytes());
  if (to_host && is_queued) std::memset(host.data_ptr(), kGarbage, host.nbytes());
  Tensor source = to_host ? as_cpu(from) : is_queued ? kept_alive(host) : host;
  Tensor target = !to_host ? as_cpu(to) : is_queued ? kept_alive(host) : host;
  auto end = push(queue, {direction, [source, target] { deliver(source, target); }});
  if (is_queued) return;
  wait(end, c10::str(non_blocking ? "non-blocking copy that blocks, " : "copy, ", direction));
}

// Queued where the source is, as in CUDA: it waits for the target's queue and lets that one wait for it.
void copy_between_devices(const Tensor& from, const Tensor& to) {
  count_copy(from.device().index(), "device to device", false, true, from.nbytes());
  make_wait(queue_of(from), end_of(queue_of(to)));
  auto run = [source = as_cpu(from), target = as_cpu(to)] { deliver(source, target); };
  make_wait(queue_of(to), push(queue_of(from), {"device to device", run}));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (!is_here(from) || !is_here(to)) {
    copy_between_host_and_device(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    copy_between_devices(from, to);
  } else {
    Stack stack{to, from, non_blocking};
    launch(find("aten::copy_"), &stack);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// ---------------------------------------------------------------- autocast

void call_in(at::ScalarType dtype, const OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  for (auto value = stack->end() - op.schema().arguments().size(); value != stack->end(); ++value)
    *value = with_tensors(*value, [&](const Tensor& tensor) {
      return at::autocast::cached_cast(dtype, tensor, c10::DeviceType::PrivateUse1);
    });
  op.callBoxed(stack);
}

void in_low_precision(const OperatorHandle& op, Stack* stack) {
  call_in(at::autocast::get_autocast_dtype(c10::DeviceType::PrivateUse1), op, stack);
}

void in_float32(const OperatorHandle& op, Stack* stack) { call_in(at::kFloat, op, stack); }

template <c10::KernelFunction::BoxedKernelFunction* function>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<function>();
}

}  // namespace

void resize_storage(const c10::Storage& storage, size_t size) {
  int device = storage.device().index();
  auto old = block_of(storage.data_ptr());
  auto pointer = allocate(device, size);
  if (old && size > 0) {
    auto copy = [old, fresh = block_of(pointer)] {
      std::memcpy(fresh->bytes.get(), old->bytes.get(), std::min(old->size, fresh->size));
    };
    push(queue_of(device), {"resize", copy});
  }
  storage.set_data_ptr_noswap(std::move(pointer));
  storage.set_nbytes(size);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, module) { module.fallback(boxed<&launch>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, module) {
  module.impl("empty.memory_format", empty);
  module.impl("empty_strided", empty_strided);
  module.impl("resize_", resize_);
  module.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(at::native::set_));
  module.impl("set_.source_Storage_storage_offset", set_storage);
  module.impl("set_.source_Tensor", at::native::set_tensor_);
  module.impl("_copy_from", copy_from);
  module.impl("_copy_from_and_resize", copy_from_and_resize);
  module.impl("as_strided", at::native::as_strided_tensorimpl);
  module.impl("view", at::native::view);
  module.impl("_reshape_alias", at::native::_reshape_alias);
  module.impl("alias", at::native::alias);
  module.impl("unfold", at::native::unfold);
  module.impl("view_as_real", at::native::view_as_real);
  module.impl("view_as_complex", at::native::view_as_complex);
  module.impl("record_stream", [](Tensor&, c10::Stream) {});
  module.impl("index.Tensor", boxed<&launch>());  // torch's own for any device would look for masks' shapes twice.
  module.impl("histc", boxed<&histogram>());
  module.impl("native_dropout", native_dropout);
  module.impl("mm.dtype", mixed_product);
  module.impl("convolution_overrideable", boxed<&convolution>());
  module.impl("convolution_backward_overrideable", boxed<&convolution_backward>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, module) { module.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, module) {
  for (const char* name : {"mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "conv1d", "conv2d", "conv3d"})
    module.impl(name, boxed<&in_low_precision>());
  for (const char* name : {"exp", "log", "rsqrt", "pow.Tensor_Scalar", "layer_norm", "nll_loss", "cross_entropy_loss"})
    module.impl(name, boxed<&in_float32>());
}

}  // namespace pretend
