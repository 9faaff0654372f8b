/*
 * cli/run_options.h - the flags of degas run, but for those of its products.
 */
#ifndef CLI_RUN_OPTIONS_H
#define CLI_RUN_OPTIONS_H

#include "cli/request/command.h"
#include "executor/run/run.h"

G_BEGIN_DECLS

extern const OptionInfo run_options_table[];

/* All that the flags say of the run; pointers are @options'.  Usage errors name the flag. */
bool run_options_read(Options *options, ExecRunOptions *exec, GError **error);

G_END_DECLS

#endif /* CLI_RUN_OPTIONS_H */
