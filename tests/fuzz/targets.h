/*
 * tests/fuzz/targets.h - what is fuzzed: the parsers of files and of the command line, and what is done with
 * what they have read.
 *
 * A target is a command of degas that is given a file of hostile bytes, in this process.  Whatever they are,
 * the command ends with its answer or with one line of error and a status other than 70; it does not crash, no
 * critical is logged.  libFuzzer (make fuzz, with clang) and driver.c (with any compiler) make the bytes.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many there are, and the name of each. */
int fuzz_n_targets(void);
const char *fuzz_target_name(int target);

/* Once, before all others.  stdout is /dev/null from then on; criticals end the process. */
void fuzz_init(void);

/* (borrowed) A folder for files, which is removed when this process exits. */
const char *fuzz_folder(void);

/* Gives @bytes to the target; aborts when it answers as it must not. */
void fuzz_try(int target, const uint8_t *bytes, size_t n);

/* In memory.c alone, which not every program of these targets has: @path reads as @bytes (both borrowed, until
 * the next call), whatever the file there holds. */
void fuzz_keep(const char *path, const uint8_t *bytes, size_t n) __attribute__((weak));

/* Returns: (owned) GPtrArray of GBytes: files that the target reads without a fault. */
GPtrArray *fuzz_seeds(int target);

/* Returns: (owned) GPtrArray of (owned) char *: words of files and command lines, for mutations. */
GPtrArray *fuzz_words(void);

/* Runs a command line; argv[0] is the program.  Returns its exit status; a message is in @error. */
int fuzz_command(int argc, char **argv, GError **error);
