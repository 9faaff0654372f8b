/*
 * cli/draw/describe_sweep.h - prints sweeps for people: a row for each size, which of them is the
 * answer, and what days and costs rest on.
 */
#pragma once

#include "cli/request/sweep.h"

/* Prints all of it. */
void describe_sweep(const Sweep *sweep);

/* Days for people, tenths below a hundred: "43.1"; "-" if they are not known. */
UnitsText describe_days(double days);

/* Returns: (owned) a point's size and what it takes, "512 devices of dgx-b200: 43.1 days, 1.73 M
 * USD"; without the cluster where the sweep has one. */
char *describe_point(const Sweep *sweep, const SweepPoint *point);
