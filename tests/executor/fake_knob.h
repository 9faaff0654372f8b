/*
 * tests/executor/fake_knob.h - knobs of the stand-ins: VARIABLE=name=number,name=number in the
 * environment.
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The number of @name in @variable, or @standard. */
static inline int64_t
fake_knob_of(const char *variable, const char *name, int64_t standard)
{
    const char *list = getenv(variable);
    const size_t n = strlen(name);

    for (const char *at = list; at != NULL && *at != '\0';) {
        if (strncmp(at, name, n) == 0 && at[n] == '=')
            return strtoll(at + n + 1, NULL, 10);
        at = strchr(at, ',');
        at = at == NULL ? NULL : at + 1;
    }
    return standard;
}
