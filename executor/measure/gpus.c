/* A profile of several GPUs: measure_machine.h. */
#include "executor/measure/machine.h"

#include <math.h>

/* The link is what p2p rows say: so fast that the cost model's message of the largest size takes
 * what was measured. */
static void
connect_gpus(Profile *profile, int64_t n_gpus)
{
    const ProfileParameters *p = &profile->parameters;
    ModelLevel *level = &g_array_index(profile->cluster->levels, ModelLevel, 0);
    const ProfileMeasurement *least = NULL, *most = NULL;

    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->op != PROFILE_OP_P2P || row->median_s <= 0)
            continue;
        least = least == NULL ? row : least;
        most = row;
    }
    g_array_index(profile->cluster->nodes, ModelNodes, 0).n_devices = n_gpus;
    g_free(level->name);
    level->name = g_strdup("between-gpus");
    if (most == NULL)
        return;
    level->latency_s = fmax(least->median_s - p->p2p_s, 0.0);
    level->bytes_per_s = fmax((double)most->bytes / most->median_s / p->p2p_fraction, 1.0);
    g_ptr_array_add(profile->cluster->sources,
                    g_strdup("the link between GPUs: measured messages (rows p2p)"));
}

/* The machine has as many of the device as the largest collective had ranks.  They share nothing
 * that a layer uses: what was timed on one holds for all at once. */
void
exec_machine_add_gpus(Profile *profile, const char *between)
{
    const ProfileMeasurement *collective = NULL;
    g_autofree char *on = g_strjoin(", ", profile->measured_on, between, NULL);

    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->op == PROFILE_OP_ALL_REDUCE &&
            (collective == NULL || row->n_ranks > collective->n_ranks))
            collective = row;
    }
    g_return_if_fail(collective != NULL);
    connect_gpus(profile, collective->n_ranks);
    profile->measured_concurrency = collective->n_ranks;
    g_free(profile->measured_on);
    profile->measured_on = g_steal_pointer(&on);
}
