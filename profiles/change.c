#include "profiles/change.h"

#include <string.h>

#include "base/text.h"
#include "base/units.h"

/* One number: where it stands in a device or, where it is none of a device, which it is. */
typedef enum {
    OF_DEVICE,
    FLOPS,
    PRICE,
    NETWORK,
    LATENCY
} Place;

typedef struct {
    Place place;
    UnitsKind kind;
    double max;
    size_t offset;       /* OF_DEVICE: of a double in ModelDevice, of memory an int64_t */
    bool needs_modelled; /* times of layers follow from it */
} Number;

const char *const profile_change_names[] = {
    "memory", "memory-bandwidth", "flops", "power", "price", "network", "latency", NULL,
};

/* In the order of the names.  The bounds are those of files (models/cluster.c). */
static const Number numbers[] = {
    {OF_DEVICE, UNITS_KIND_BYTES, 0x1p50, offsetof(ModelDevice, memory_bytes), false},
    {OF_DEVICE, UNITS_KIND_BYTES_PER_S, 1e18, offsetof(ModelDevice, memory_bytes_per_s), true},
    {FLOPS, UNITS_KIND_FLOPS, 1e21, 0, true},
    {OF_DEVICE, UNITS_KIND_NUMBER, 1e6, offsetof(ModelDevice, power_w), false},
    {PRICE, UNITS_KIND_NUMBER, 1e6, 0, false},
    {NETWORK, UNITS_KIND_BYTES_PER_S, 1e18, 0, false},
    {LATENCY, UNITS_KIND_S, 10, 0, false},
};

static bool
fail(GError **error, const char *name, const char *message)
{
    g_autofree char *shown = text_escape(name, 64);

    g_set_error(error, UNITS_ERROR, UNITS_ERROR_INVALID, "%s: %s", shown, message);
    return false;
}

static bool
fail_unknown(const Profile *profile, const char *name, GError **error)
{
    const GArray *levels = profile->cluster->levels;
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    for (size_t i = 0; profile_change_names[i] != NULL; i++)
        g_ptr_array_add(names, (void *)profile_change_names[i]);
    for (guint i = 0; i < levels->len; i++)
        g_ptr_array_add(names, g_array_index(levels, ModelLevel, i).name);
    g_ptr_array_add(names, NULL);
    g_autofree char *suggestion = text_suggestion(name, (const char *const *)names->pdata);
    g_autofree char *all = g_strjoinv(", ", (char **)names->pdata);
    g_autofree char *escaped = text_escape(all, 300);
    g_autofree char *message =
        g_strdup_printf("is none of %s%s%s", escaped, *suggestion == 0 ? "" : ";",
                        *suggestion == 0 ? "" : suggestion + 1);
    return fail(error, name, message);
}

/* Whether rows of @profile were measured whose times a changed @number (of a level: NULL) would not
 * change: those of layers, or those of messages. */
static bool
is_measured(const Profile *profile, const Number *number)
{
    const bool is_network = number == NULL || number->place == NETWORK || number->place == LATENCY;

    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileOp op = g_array_index(profile->measurements, ProfileMeasurement, i).op;
        const bool is_message = op == PROFILE_OP_P2P || op == PROFILE_OP_ALL_REDUCE ||
                                op == PROFILE_OP_ALL_GATHER || op == PROFILE_OP_REDUCE_SCATTER ||
                                op == PROFILE_OP_BROADCAST || op == PROFILE_OP_ALL_TO_ALL;

        if (is_network ? is_message : number->needs_modelled && !is_message)
            return true;
    }
    return false;
}

/* The format whose rate --set flops gives. */
static Dtype
main_format(const ModelDevice *device)
{
    return device->flops_per_s[DTYPE_BF16] > 0   ? DTYPE_BF16
           : device->flops_per_s[DTYPE_FP16] > 0 ? DTYPE_FP16
                                                 : DTYPE_FP32;
}

static void
change_device(ModelDevice *device, const Number *number, double value)
{
    char *member = (char *)device + number->offset;

    if (number->place == PRICE) {
        device->price_per_hour = 0; /* the cluster's */
    } else if (number->place == FLOPS) {
        const double before = device->flops_per_s[main_format(device)];

        for (int i = 0; before > 0 && i < DTYPE_N; i++)
            device->flops_per_s[i] *= value / before;
    } else if (number->kind == UNITS_KIND_BYTES) {
        *(int64_t *)(void *)member = (int64_t)value;
    } else {
        *(double *)(void *)member = value;
    }
}

static void
set_rate(double *bytes_per_s, double *shared_bytes_per_s, double value)
{
    *shared_bytes_per_s *= value / *bytes_per_s;
    *bytes_per_s = value;
}

static void
change_level(ModelCluster *cluster, guint at, bool is_latency, double value)
{
    ModelLevel *level = &g_array_index(cluster->levels, ModelLevel, at);

    if (is_latency)
        level->latency_s = value;
    else
        set_rate(&level->bytes_per_s, &level->shared_bytes_per_s, value);
    for (guint i = 0; i < cluster->nodes->len; i++) {
        ModelLink *link = &g_array_index(cluster->nodes, ModelNodes, i).links[at];

        if (!g_array_index(cluster->nodes, ModelNodes, i).has_link[at])
            continue;
        if (is_latency)
            link->latency_s = value;
        else
            set_rate(&link->bytes_per_s, &link->shared_bytes_per_s, value);
    }
}

/* @text as a @kind, which stands with its unit. */
static bool
parse(const char *name, const char *text, UnitsKind kind, double max, double *value, GError **error)
{
    static const char *const examples[] = {
        [UNITS_KIND_BYTES] = "141GB",     [UNITS_KIND_BYTES_PER_S] = "400Gbps or 50GB/s",
        [UNITS_KIND_FLOPS] = "989TFLOPS", [UNITS_KIND_S] = "2us",
        [UNITS_KIND_NUMBER] = NULL,
    };
    g_autoptr(GError) local = NULL;

    /* 400 would be bytes. */
    if (examples[kind] != NULL && text[strspn(text, "0123456789.eE+- ")] == 0) {
        g_autofree char *message = g_strconcat("needs a unit, such as ", examples[kind], NULL);
        return fail(error, name, message);
    }
    if (!units_parse(text, kind, value, &local))
        return fail(error, name, local->message);
    if (!(*value > 0 && *value <= max))
        return fail(error, name, "expected a value above 0 that a device can have");
    return true;
}

bool
profile_change(Profile *profile, const char *name, const char *text, GError **error)
{
    ModelCluster *cluster = profile->cluster;
    const Number *number = NULL;
    guint level = 0;
    double value;

    for (size_t i = 0; profile_change_names[i] != NULL; i++)
        if (strcmp(profile_change_names[i], name) == 0)
            number = &numbers[i];
    while (number == NULL && level < cluster->levels->len &&
           strcmp(g_array_index(cluster->levels, ModelLevel, level).name, name) != 0)
        level++;
    if (level == cluster->levels->len)
        return fail_unknown(profile, name, error);
    if (number != NULL)
        level = cluster->levels->len - 1;
    if (!parse(name, text, number == NULL ? UNITS_KIND_BYTES_PER_S : number->kind,
               number == NULL ? 1e18 : number->max, &value, error))
        return false;
    if (is_measured(profile, number))
        return fail(error, name,
                    "this profile measured times that would not change; use one without them");
    if (number == NULL || number->place == NETWORK || number->place == LATENCY) {
        change_level(cluster, level, number != NULL && number->place == LATENCY, value);
        return true;
    }
    for (guint i = 0; i < cluster->devices->len; i++)
        change_device(&g_array_index(cluster->devices, ModelDevice, i), number, value);
    if (number->place == PRICE)
        cluster->price_per_device_hour = value;
    return true;
}
