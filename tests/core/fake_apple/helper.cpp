// Lets PyTorch believe in a GPU of Apple's: autograd and copies find it; there are no kernels.
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace {
struct MPSHooks : at::MPSHooksInterface {
  bool hasMPS() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
}

// These functions are taken instead of libtorch_cpu's, since they are loaded first.
namespace at::accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return c10::DeviceType::MPS; }
}

namespace at::detail {
const MPSHooksInterface& getMPSHooks() {
  static MPSHooks hooks;
  return hooks;
}
}

// To be called once PyTorch is imported.
extern "C" void use_fake_guard() {
  static c10::impl::FakeGuardImpl<c10::DeviceType::MPS> guard;
  c10::impl::DeviceGuardImplRegistrar(c10::DeviceType::MPS, &guard);
}
