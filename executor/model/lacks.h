/*
 * executor/model/lacks.h - which models the layers' code does not compute.
 *
 * This is the one place that refuses: a row of a table in lacks.c for each thing that a kind of
 * layers, or the ends, may have.  Who implements a thing deletes its row, or says in it that the
 * host's backends compute it and the plugins' do not.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/device/backend.h"
#include "models/arch.h"
#include "schedule/plan.h"

/* Returns: (static, nullable) the first thing of @arch that a run of @plan on a device of @kind
 * cannot compute, in words that go on "degas run cannot execute ..."; NULL: it computes all. */
const char *exec_model_lacks(const ModelArch *arch, const Plan *plan, const ExecDeviceKind *kind);
