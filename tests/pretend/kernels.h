// What the device's two halves in torch share: device.cpp asks these of kernels.cpp, and the other way about.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Storage.h>

#include <optional>

namespace pretend {

void resize_storage(const c10::Storage& storage, size_t size);  // In kernels.cpp.
at::Generator seeded_for_launch(const std::optional<at::Generator>& given, int device);  // In device.cpp.

}  // namespace pretend
