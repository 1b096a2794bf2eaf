// Lets PyTorch believe in one CUDA device: autograd, copies and streams find it; there are no kernels.
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <cstdlib>

namespace {
const int hides_gpus = setenv("CUDA_VISIBLE_DEVICES", "", 1);

struct CUDAHooks : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};
}

// These functions are taken instead of libtorch_cpu's, since they are loaded first.
namespace at::accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return c10::DeviceType::CUDA; }
}

namespace at::detail {
const CUDAHooksInterface& getCUDAHooks() {
  static CUDAHooks hooks;
  return hooks;
}
}

// To be called once PyTorch is imported: a build for CUDA registers its own guard then.
extern "C" void use_fake_guard() {
  static c10::impl::FakeGuardImpl<c10::DeviceType::CUDA> guard;
  c10::impl::DeviceGuardImplRegistrar(c10::DeviceType::CUDA, &guard);
}
