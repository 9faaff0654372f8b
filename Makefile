# degas: make, make demo, make test, make test-long, make bench, make loop, make validate, make bundle,
# make gpu-check, make check, make install, make uninstall, make deb; prints what it found.
# make step-time: a step of many kinds of layers on this CPU, beside its prediction.
# make libdegas: the C library, which make install then installs, too.
# make fuzz, make fuzz-many, make torture, make fire, make soak, make mutants, make valgrind: docs/quality.md.
# Options: SAN=address,undefined or SAN=thread, CUDA=0|1, MPI=0|1, CC, MPICC, CFLAGS, LDFLAGS, OPT,
# PREFIX=/usr/local and DESTDIR= (make install), V=1 (whole commands instead of a line per file), -jN (one job per core unless given).

CC ?= gcc
SAN ?=
comma := ,
B := build/$(or $(subst $(comma),-,$(SAN)),release)

# One job per core, unless the user said how many.  Goals that remove or install files, or call make
# themselves, are not begun beside other goals.
ONE_BY_ONE := $(and $(filter clean demo format packages test install uninstall deb,$(MAKECMDGOALS)),$(word 2,$(MAKECMDGOALS)))
ifeq ($(ONE_BY_ONE),)
MAKEFLAGS += $(shell echo " $$MAKEFLAGS" | grep -q ' -j' || echo -j$$(nproc 2>/dev/null || echo 2))
endif

# $(call say,WORD,FILE)COMMAND: shows the line "WORD FILE" in place of the command, unless V=1.
say = $(if $(filter-out 0,$(V)),,@printf '%-5s %s\n' '$(1)' '$(2)';)

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wmissing-prototypes \
	-Wstrict-prototypes -Wno-unused-parameter -Wno-missing-field-initializers
OPT ?= -O2 -g
PACKAGES_CFLAGS := $(shell pkg-config --cflags glib-2.0 libcjson yaml-0.1 zlib 2>/dev/null)
PACKAGES_LIBS := $(shell pkg-config --libs glib-2.0 libcjson yaml-0.1 zlib 2>/dev/null)
# Contraction off: predictions must have the same bits on every processor.
# What makes a mistake with memory harder to use: tests/cli/test_hardened.sh.  A sanitizer has its own checks.
HARDENED := $(if $(SAN),,-U_FORTIFY_SOURCE $(if $(filter -O1 -O2 -O3,$(OPT)),-D_FORTIFY_SOURCE=2) -fstack-protector-strong -fPIE)
HARDENED_LIBS := -Wl,-z,relro,-z,now,-z,noexecstack
# No place of this machine in what is built: two builds of one commit are the same bytes.
ANYWHERE := '-ffile-prefix-map=$(CURDIR)=.'
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE $(WARNINGS) $(OPT) $(HARDENED) $(ANYWHERE) -ffp-contract=off -fno-math-errno -pthread -I. \
	-DGLIB_VERSION_MIN_REQUIRED=GLIB_VERSION_2_74 -DGLIB_VERSION_MAX_ALLOWED=GLIB_VERSION_2_74 \
	$(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all) \
	$(PACKAGES_CFLAGS) $(CFLAGS)
LIBS_ALL = $(if $(SAN),-fsanitize=$(SAN)) $(HARDENED_LIBS) $(PACKAGES_LIBS) -ldl -lm -pthread $(LDFLAGS)

# What the thread sanitizer needs of GLib's locks.
GLIB_LOCKS := $(if $(filter thread,$(SAN)),$(B)/tests/glib_locks.o)

# Ranks of docs/architecture.md: a folder links itself and what is below it.
FOLDERS := base models schedule profiles planner simulator executor
LOWER_base :=
LOWER_models := base
LOWER_schedule := base
LOWER_profiles := schedule models base
LOWER_planner := profiles schedule models base
LOWER_simulator := profiles schedule models base
LOWER_executor := profiles schedule models base
LOWER_cli := executor simulator planner profiles schedule models base

EMBEDDED := $(sort $(wildcard models/*.json profiles/*.json cli/plots/*.gp cli/plots/*.html cli/validate/*.json cli/help/schema/*.json cli/help/init/*.yaml \
	docs/demo/*.txt))
# Of a folder and its rooms; the plugins' rooms are theirs.
SOURCES = $(filter-out $(PLUGIN_SOURCES),$(wildcard $(1)/*.c $(1)/*/*.c))
OBJECTS = $(patsubst %.c,$(B)/%.o,$(call SOURCES,$(1)))
ARCHIVE = $(B)/libdegas-$(1).a

include executor/plugins.mk

TESTS := $(foreach f,$(FOLDERS) cli,$(wildcard tests/$(f)/test_*.c))
TEST_PROGRAMS := $(patsubst %.c,$(B)/%,$(TESTS))
# What tests/torture needs; a sanitizer's library does not let another be loaded before it.
TORTURE := $(if $(SAN),,$(addprefix $(B)/tests/torture/,torture faults.so))
BENCHES := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/bench_*.c))
# Those that gpu-check runs on a real device.
GPU_TESTS := $(addprefix $(B)/tests/executor/,test_cuda test_cuda_probe)

# The C library, libdegas.so.0: cli/library/degas.h.  Its objects are its own, since only they must
# run at any address beside others; what it does not use of them is left out.
VERSION := $(shell sed -n 's/^\#define DEGAS_VERSION "\(.*\)"/\1/p' cli/help/help.h)
LIBRARY := libdegas.so.$(VERSION)
LIBRARY_NAME := libdegas.so.$(firstword $(subst ., ,$(VERSION)))
LIBRARY_SOURCES := $(foreach f,$(LOWER_simulator) simulator planner cli/library cli/request,$(call SOURCES,$(f))) executor/device/backend.c

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all libdegas demo test run-tests test-long bench loop step-time gallery validate validation-page check-page frameworks-page bundle \
	gpu-check check format clean packages install uninstall deb

# The plugins first: their kernels take longest.
all: $(PLUGINS) $(B)/degas
	@ln -sf $(B)/degas degas
	@scripts/summary.sh $(notdir $(PLUGINS))

$(B)/degas: $(call OBJECTS,cli) $(foreach f,$(LOWER_cli),$(call ARCHIVE,$(f))) $(GLIB_LOCKS)
	$(call say,LD,$@)$(CC) $(if $(SAN),,-pie) -o $@ $^ $(LIBS_ALL)

$(B)/%.o: %.c $(B)/flags.list | check-packages
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

# The names of all files that are built in; written anew only when one comes or goes, so that what a removed file left goes, too.
FILES := $(B)/files.list
.PHONY: look
look:
$(FILES): look
	@mkdir -p $(@D)
	@echo $(EMBEDDED) $(foreach f,$(FOLDERS) cli,$(call SOURCES,$(f))) | cmp -s - $@ || \
		echo $(EMBEDDED) $(foreach f,$(FOLDERS) cli,$(call SOURCES,$(f))) > $@

# With which flags: written anew only when they change, so that nothing stays as other flags made it.
$(B)/flags.list: look
	@mkdir -p $(@D)
	@echo "$(CFLAGS_ALL) $(LIBS_ALL)" | cmp -s - $@ || echo "$(CFLAGS_ALL) $(LIBS_ALL)" > $@

$(B)/embedded_data.S: $(EMBEDDED) scripts/embed.sh Makefile $(FILES)
	@mkdir -p $(@D)
	$(call say,EMBED,$@)scripts/embed.sh $(EMBEDDED) > $@

$(B)/embedded_data.o: $(B)/embedded_data.S $(EMBEDDED)
	$(call say,AS,$<)$(CC) $(ANYWHERE) -c -o $@ $<

define FOLDER_RULE
$(call ARCHIVE,$(1)): $(call OBJECTS,$(1)) $(if $(filter base,$(1)),$(B)/embedded_data.o) $(FILES)
	@rm -f $$@
	$$(call say,AR,$$@)ar rcsP $$@ $$(filter %.o,$$^)
endef
$(foreach f,$(FOLDERS),$(eval $(call FOLDER_RULE,$(f))))

# A test links its folder and everything below; tests of rank 3 may meet the siblings too.
define TEST_RULE
$(B)/tests/$(1)/%: $(B)/tests/$(1)/%.o $(2) $(GLIB_LOCKS)
	$$(call say,LD,$$@)$$(CC) -o $$@ $$^ $$(LIBS_ALL)
endef
$(foreach f,base models schedule profiles,$(eval $(call TEST_RULE,$(f),$(foreach l,$(f) $(LOWER_$(f)),$(call ARCHIVE,$(l))))))
# Of cli/ all but main().
$(B)/libdegas-cli.a: $(filter-out $(B)/cli/main.o,$(call OBJECTS,cli)) $(FILES)
	@rm -f $@
	$(call say,AR,$@)ar rcsP $@ $(filter %.o,$^)

libdegas: $(B)/$(LIBRARY)

$(B)/$(LIBRARY): cli/library/degas.map $(LIBRARY_SOURCES:%.c=$(B)/pic/%.o) $(B)/embedded_data.o
	$(call say,LD,$@)$(CC) -shared -o $@ -Wl,-soname,$(LIBRARY_NAME) -Wl,--version-script=$< -Wl,--gc-sections \
		-Wl,--no-undefined $(filter-out %.map,$^) $(LIBS_ALL)
	@ln -sf $(LIBRARY) $(B)/$(LIBRARY_NAME)
	@ln -sf $(LIBRARY_NAME) $(B)/libdegas.so

$(B)/pic/%.o: %.c $(B)/flags.list | check-packages
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS_ALL) -fPIC -fno-semantic-interposition -ffunction-sections -fdata-sections \
		-MMD -MP -c -o $@ $<

$(eval $(call TEST_RULE,cli,$(foreach l,cli $(LOWER_cli),$(call ARCHIVE,$(l)))))
$(foreach f,planner simulator executor bench,$(eval $(call TEST_RULE,$(f),$(foreach l,$(LOWER_cli),$(call ARCHIVE,$(l))))))

$(B)/tests/torture/torture: $(B)/tests/torture/torture.o
	$(call say,LD,$@)$(CC) -o $@ $^ $(LIBS_ALL)
$(B)/tests/torture/faults.so: tests/torture/faults.c
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(CFLAGS_ALL) -U_FORTIFY_SOURCE -fPIC -shared -o $@ $< $(LDFLAGS)

# Fuzzing: tests/fuzz/targets.c has the program's main file in it.
FUZZ := $(B)/tests/fuzz/driver
$(B)/tests/fuzz/%: $(B)/tests/fuzz/%.o $(B)/tests/fuzz/targets.o $(foreach l,cli $(LOWER_cli),$(call ARCHIVE,$(l))) $(GLIB_LOCKS)
	$(call say,LD,$@)$(CC) -o $@ $^ $(LIBS_ALL)
# The same with what memory.c has in place of these functions.
IN_MEMORY := file_read file_read_max profile_load model_arch_load $(addprefix __sanitizer_weak_hook_,memcmp strcmp strncmp)
$(B)/tests/fuzz/%_in_memory: $(B)/tests/fuzz/%.o $(B)/tests/fuzz/targets.o $(B)/tests/fuzz/memory.o \
		$(foreach l,cli $(LOWER_cli),$(call ARCHIVE,$(l))) $(GLIB_LOCKS)
	$(call say,LD,$@)$(CC) -o $@ $^ $(IN_MEMORY:%=-Wl,--wrap=%) $(LIBS_ALL)

.PHONY: check-packages
check-packages:
	@pkg-config --exists glib-2.0 libcjson yaml-0.1 zlib 2>/dev/null || { \
	echo "make: the development files of GLib, cJSON, libyaml and zlib are missing; run: make packages" >&2; exit 6; }

packages:
	@scripts/packages.sh

demo: packages
	@$(MAKE) --no-print-directory all
	@scripts/demo.sh

test:
	@scripts/packages.sh --tests
	@$(MAKE) --no-print-directory run-tests

# What tests of the command line run too is built before them: no two of them build at once.
run-tests: all $(TEST_PROGRAMS) $(TORTURE) $(FUZZ) $(BENCHES) $(B)/tests/bench/gauge_cores $(EMULATED)
	@scripts/run_tests.sh $(TEST_PROGRAMS) $(sort $(wildcard tests/lint/test_*.sh tests/cli/test_*.sh))

# What is long by nature (tests/long): some 20 minutes on 2 cores, and never over 30.  MEGATRON=DIR is a checkout of
# Megatron-LM, whose arguments exports are then read by.
test-long: all $(TORTURE) $(FUZZ) $(B)/tests/executor/test_matrix $(B)/tests/executor/test_torch $(B)/tests/planner/test_bounds_hold \
		$(B)/tests/planner/test_search_space
	@TEST_BUILD=$(B) LIMIT_S=1500 scripts/run_tests.sh $(sort $(wildcard tests/long/*.sh))

# What the frameworks' own code says of exported plans: the table of docs/frameworks.md.
frameworks-page: all $(B)/tests/executor/test_torch
	@PAGE=docs/frameworks.md TEST_BUILD=$(B) LIMIT_S=1500 scripts/run_tests.sh tests/long/exports.sh

.PHONY: fuzz fuzz-many torture fire soak mutants valgrind processors
# libFuzzer on each target for FUZZ_S seconds, or where there is no clang our own mutations; then random requests.
FUZZ_S ?= 60
fuzz: $(FUZZ)
	@FUZZ_S=$(FUZZ_S) scripts/fuzz.sh $(FUZZ)

# Many executions a second, in pieces: SEED=K is the K-th, on JOBS cores; PAGE= adds nothing to the table of the page.
fuzz-many: PAGE ?= docs/quality.md
fuzz-many: $(FUZZ)
	@MANY=1 FUZZ_S=$(FUZZ_S) FUZZ_SEED=$(or $(SEED),1) JOBS=$(or $(JOBS),1) PAGE="$(PAGE)" scripts/fuzz.sh $(FUZZ)

# Every command while each call of the system fails, and 300 signals for each command that writes.
torture: all $(TORTURE)
	@$(B)/tests/torture/torture ./degas $(B)/tests/torture/faults.so
	@$(B)/tests/torture/torture ./degas $(B)/tests/torture/faults.so --signals 300

# N runs with random faults, drawn by SEED.
fire: all
	@N=$(or $(N),100) SEED=$(or $(SEED),1) sh tests/long/fire.sh

# The same answers by other compilers and processors: AARCH64_ROOT=DIR, made by scripts/aarch64_root.sh.
processors: all
	@ALL=1 AARCH64_ROOT="$(AARCH64_ROOT)" sh tests/long/processors.sh

# Two long runs whose memory has to stay as it is.
soak: all
	@S=$(or $(S),1800) sh tests/long/soak.sh

# Tests of the command line with every command under memcheck.
valgrind: all
	@scripts/valgrind.sh

# How many small mistakes the unit tests notice: another SEED is another sample; QUICK=1 without tests of more than 1 s.
N_MUTANTS ?= 500
mutants: $(TEST_PROGRAMS)
	@scripts/mutants.py --build $(B) --n $(N_MUTANTS) $(SEED:%=--seed %) $(QUICK:%=--quick %)

bench: all $(BENCHES)
	@scripts/bench.sh $(BENCHES)

# Predicted beside measured on this machine's CPU: writes docs/loop.md.
loop: all $(B)/tests/bench/gauge_cores
	@GAUGE=$(B)/tests/bench/gauge_cores scripts/loop.sh

# Whether a step of a model of many kinds of layers takes on two ranks what is predicted, within 10 %: a measurement, and so no test.
step-time: all
	@scripts/run_tests.sh tests/bench/step_time.sh

# The pictures of docs/gallery.md and docs/tutorial.md by the commands in them; CHECK=1 writes nothing, and fails where one is another now.
gallery: all
	@for page in docs/gallery.md docs/tutorial.md; do scripts/gallery.sh $(if $(CHECK),--check) $$page || exit 1; done

# Predictions beside published measurements; the table of docs/validation.md.
VALIDATION ?= ../shared/validation
validate: all
	@if [ -d "$(VALIDATION)" ]; then ./degas validate "$(VALIDATION)" --skip-bad-rows --folds 5; \
	else echo "validate: skipped, there is no folder $(VALIDATION)"; fi

validation-page: all
	@./degas validate "$(VALIDATION)" --skip-bad-rows --folds 5 --best --page docs/validation.md --accuracy cli/validate/accuracy.json

# What degas check says of ten public recipes.
check-page: all
	@scripts/check_page.sh "$$(pwd)/degas" tests/data/recipes.txt > build/check.md && mv build/check.md docs/check.md

# A folder for machines without our libraries: scripts/bundle.sh.
bundle: all $(GPU_TESTS)
	@scripts/bundle.sh $(B) build/bundle

# On a machine with a GPU: correctness, speed and predictions into OUT; status 6 where there is none.
# BUNDLE=folder takes that bundle and builds nothing; SMALL=1: sizes for the emulated GPU, in DEGAS_PLUGIN_DIR.
gpu-check: $(if $(BUNDLE),,all $(GPU_TESTS))
	@scripts/gpu_check.sh $(if $(SMALL),--small) "$(or $(BUNDLE),$(B))" "$(OUT)"

# Installs what make built, and builds it where that was not done; uninstall removes just that.
PREFIX ?= /usr/local
DESTDIR ?=
install: all
	@scripts/install.sh $(B) "$(PREFIX)" "$(DESTDIR)" $(notdir $(PLUGINS))

uninstall:
	@scripts/install.sh --remove "$(PREFIX)" "$(DESTDIR)"

# Debian packages of the program and the library, in the build folder.
deb: all libdegas
	@scripts/deb.sh $(B) $(notdir $(PLUGINS))

check: all
	@tests/lint/check_all.sh

format:
	clang-format -i $(wildcard */*.[ch] */*/*.[ch])

clean:
	rm -rf build degas

-include $(shell find $(B) -name '*.d' 2>/dev/null)
