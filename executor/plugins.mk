# executor/plugins.mk - the plugins of executor/device/plugin.h, included by the Makefile.
#
# CUDA=0|1 forces or forbids degas-cuda.so; without it, it is built where nvcc is and a program using
# cuBLASLt links.  No GPU or driver is needed to build it.  CUDA_ARCHS: compute capabilities, the
# lowest first; that one also as PTX, which newer devices translate.

NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
NVCC := $(NVCC)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_ARCHS ?= 80 90
CUDA_CFLAGS := -isystem $(CUDA_HOME)/include
# The runtime is in the plugin: a machine whose Python environment brings cuBLASLt may have none.
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -Wl,--exclude-libs,libcudart_static.a \
	-ldl -lrt -pthread
CUDA ?= $(if $(NVCC),$(shell scripts/links.sh cublasLt.h 'cublasLtGetVersion() + cudaDeviceSynchronize()' \
	"$(CC) $(CUDA_CFLAGS)" "$(CUDA_LIBS)"),0)
CUDA := $(CUDA)

# In plugins only; clock.c and transport.c are in both, and in the program.
CUDA_SOURCES := $(wildcard executor/cuda/*.c)
CUDA_KERNELS := $(wildcard executor/cuda/kernels_*.cu)
PLUGIN_SOURCES := $(CUDA_SOURCES) $(wildcard executor/mpi/*.c)

GLIB_CFLAGS := $(shell pkg-config --cflags glib-2.0 2>/dev/null)
GLIB_LIBS := $(shell pkg-config --libs glib-2.0 2>/dev/null)

# A plugin is its own copy of what it needs: no symbol of the program is looked up from it.
PLUGIN_LDFLAGS = -shared -Wl,-Bsymbolic -Wl,--no-undefined $(if $(SAN),-fsanitize=$(SAN)) \
	$(HARDENED_LIBS) $(GLIB_LIBS) -lm -ldl

NVCC_FLAGS = -std=c++17 -O3 -I. -isystem /usr/include/glib-2.0 \
	$(patsubst -I%,-isystem %,$(filter -I%,$(GLIB_CFLAGS))) \
	-Xcompiler -fPIC,-fno-threadsafe-statics,-fno-exceptions,-fno-rtti -diag-suppress 1217
# PTX is made once, for the lowest architecture, and compiled for each: with nvcc 13.0 the code that
# sm_90 gets of compute_80's PTX is byte for byte that of compute_90's, since the kernels use nothing
# newer.
NVCC_PTX = compute_$(firstword $(CUDA_ARCHS))
NVCC_TARGETS = $(foreach a,$(CUDA_ARCHS:%=sm_%) $(NVCC_PTX),-gencode arch=$(NVCC_PTX),code=$(a))

$(B)/plugin/%.o: %.c $(B)/flags.list | check-packages
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS_ALL) $(CUDA_CFLAGS) -fPIC -MMD -MP -c -o $@ $<

$(B)/plugin/%.o: %.cu | check-packages
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) $(NVCC_FLAGS) $(NVCC_TARGETS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# Instructions of one compute capability: for no other device, not even as PTX.
$(addprefix $(B)/plugin/executor/cuda/kernels_hopper,.o _probe.o): NVCC_TARGETS = -gencode arch=compute_90a,code=sm_90a

CUDA_OBJECTS := $(CUDA_SOURCES:%.c=$(B)/plugin/%.o) $(addprefix $(B)/plugin/executor/,device/clock.o transport/transport.o)
$(B)/degas-cuda.so: $(CUDA_OBJECTS) $(CUDA_KERNELS:%.cu=$(B)/plugin/%.o)
	$(call say,LD,$@)$(CC) -o $@ $^ $(PLUGIN_LDFLAGS) $(CUDA_LIBS)

# MPI=0|1 likewise: where mpicc is and what it links.
MPICC ?= mpicc
MPI ?= $(if $(shell command -v $(MPICC) 2>/dev/null),$(shell scripts/links.sh mpi.h 'MPI_Init(0, 0)' "$(MPICC)" ""),0)
MPI := $(MPI)
MPI_OBJECTS := $(patsubst %.c,$(B)/mpi/%.o,$(wildcard executor/mpi/*.c) executor/transport/collective.c executor/transport/seal.c executor/transport/transport.c executor/device/clock.c)

$(B)/mpi/%.o: %.c $(B)/flags.list | check-packages
	@mkdir -p $(@D)
	$(call say,CC,$<)$(MPICC) $(CFLAGS_ALL) -fPIC -MMD -MP -c -o $@ $<

$(B)/degas-mpi.so: $(MPI_OBJECTS)
	$(call say,LD,$@)$(MPICC) -o $@ $^ $(PLUGIN_LDFLAGS)

PLUGINS := $(if $(filter 1,$(CUDA)),$(B)/degas-cuda.so) $(if $(filter 1,$(MPI)),$(B)/degas-mpi.so)

# The same backend on an emulated GPU (tests/executor/gpu_on_host.hh): kernels as C++, and the CUDA
# functions it calls by tests/executor/fake_cuda.c.  Needs the toolkit's headers only.
CXX ?= g++
EMULATED := $(if $(filter 1,$(CUDA)),$(if $(shell command -v $(CXX) 2>/dev/null),$(B)/emulated/libnccl.so.2))
EMULATED_FLAGS = -std=c++17 -O2 -g -Wall -Wextra -Wno-unused-parameter -Wno-unknown-pragmas -fPIC -I. \
	-fno-exceptions -fno-rtti -ffp-contract=off $(if $(SAN),-fsanitize=$(SAN)) $(GLIB_CFLAGS)

$(B)/emulated/%.o: %.cu tests/executor/gpu_on_host.hh tests/executor/hopper_on_host.hh | check-packages
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(CXX) $(EMULATED_FLAGS) -include tests/executor/gpu_on_host.hh -MMD -MP -x c++ -c -o $@ $<

$(B)/emulated/%_on_host.o: tests/executor/%_on_host.cc tests/executor/gpu_on_host.hh \
		tests/executor/hopper_on_host.hh
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(CXX) $(EMULATED_FLAGS) -c -o $@ $<

$(B)/emulated/fake_%.o: tests/executor/fake_%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS_ALL) $(CUDA_CFLAGS) -Wno-missing-prototypes -fPIC -MMD -MP -c -o $@ $<

# Never linked: that it compiles is the test.
$(B)/emulated/nccl_interface.o: tests/executor/nccl_interface.c
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS_ALL) $(CUDA_CFLAGS) -Wno-missing-prototypes -fPIC -MMD -MP -c -o $@ $<

$(B)/emulated/degas-cuda.so: $(CUDA_OBJECTS) $(CUDA_KERNELS:%.cu=$(B)/emulated/%.o) \
		$(addprefix $(B)/emulated/,gpu_on_host.o hopper_on_host.o fake_cuda.o fake_streams.o fake_tensor_map.o)
	$(call say,LD,$@)$(CXX) -o $@ $^ $(PLUGIN_LDFLAGS) -Wl,-rpath,'$$ORIGIN'

# The NCCL beside it, which the plugin opens by name; its streams are that plugin's.
$(B)/emulated/libnccl.so.2: $(B)/emulated/fake_nccl.o $(B)/emulated/nccl_interface.o \
		$(B)/emulated/degas-cuda.so
	$(call say,LD,$@)$(CC) -shared -o $@ $< -L$(B)/emulated -l:degas-cuda.so -Wl,-rpath,'$$ORIGIN' -pthread \
		$(if $(SAN),-fsanitize=$(SAN))
