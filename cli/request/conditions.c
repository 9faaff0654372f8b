#include "cli/request/conditions.h"

#include <math.h>
#include <string.h>

#include "cli/request/command.h"

#define OF_PROFILE "profile"
#define DEFAULT_RUNS 1000
#define DEFAULT_SEED 1
#define DEFAULT_SLOWDOWN 2.0
/* Ranks whose speeds differ by more are not one pipeline. */
#define MIN_SPEED 0.001
#define MAX_SPEED 1000.0

typedef struct {
    int32_t rank;
    double speed;
} ConditionsSpeed;

const OptionInfo conditions_options[] = {
    {"rank-speed", "LIST",
     "make pipeline ranks slower or faster, e.g. 3=0.8: rank 3 computes at 0.8 times its speed"},
    {"jitter", "SIGMA[,RUNS[,SEED]]",
     "also simulate RUNS iterations (default: 1000) in which each op and message takes exp(SIGMA "
     "Z) times as long, Z normally distributed; the report then has p10, p50 and p90 of time and "
     "memory, and the share of runs that fit. SIGMA profile: times vary as they did when the "
     "profile was measured",
     .common = true},
    {"expert-load", "LOAD[,STEPS[,SEED]]",
     "also draw STEPS steps (default: 1000) in which rows come unevenly to the ranks of experts; "
     "the "
     "report then has p50 and p95 of imbalance, time and memory, and the share of steps that fit. "
     "LOAD: "
     "even (chance alone), zipf:S (the i-th hottest expert of a layer gets i^-S), or a .csv of "
     "counts "
     "with the columns layer, expert and rows"},
    {"rank-jitter", "SIGMA",
     "vary the speed of a rank as a whole from run to run, with --jitter; default: as --jitter"},
    {"memory-jitter", "SIGMA",
     "vary the peak memory of a rank, with --jitter; default: 0.02, since what the allocator loses "
     "is not known better"},
    {"straggler", "P[,SLOWDOWN]",
     "let each rank take SLOWDOWN times as long (default: 2) with probability P, in each run of "
     "--jitter"},
    {NULL, NULL, NULL},
};

/* --- reading --- */

/* How far the allocator's share of what is allocated may be from its default. */
static double
allocator_spread(void)
{
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        if (strcmp(profile_parameter_info[i].name, "allocator_fraction") == 0)
            return profile_parameter_info[i].spread;
    g_assert_not_reached();
}

static double
read_number(Options *options, const char *name, const char *text, UnitsKind kind, double least,
            double most)
{
    const double value = options_part(options, name, text, kind, least);

    if (value < least || value > most) {
        options_fail(options, name, "expected %g to %g, got \"%s\"", least, most, text);
        return least;
    }
    return value;
}

/* A relative spread: 0.05 or 5%, beyond 1 as a plain number. */
static double
read_sigma(Options *options, const char *name, const char *text)
{
    const bool is_percent = g_str_has_suffix(text, "%");

    return read_number(options, name, text, is_percent ? UNITS_KIND_FRACTION : UNITS_KIND_NUMBER, 0,
                       SIM_JITTER_MAX_SIGMA);
}

static int64_t
read_integer(Options *options, const char *name, const char *text, int64_t least, int64_t most)
{
    int64_t value = least;

    options_part_int64(options, name, text, name, least, most, &value);
    return value;
}

static void
read_speed(Conditions *conditions, Options *options, const char *word)
{
    const char *equals = strchr(word, '=');
    g_autofree char *rank = equals == NULL ? NULL : g_strndup(word, (size_t)(equals - word));

    if (equals == NULL) {
        options_fail(options, "rank-speed", "expected RANK=SPEED, got \"%s\"", word);
        return;
    }
    const ConditionsSpeed speed = {
        .rank = (int32_t)read_integer(options, "rank-speed", rank, 0, SCHEDULE_MAX_RANKS - 1),
        .speed =
            read_number(options, "rank-speed", equals + 1, UNITS_KIND_NUMBER, MIN_SPEED, MAX_SPEED),
    };
    for (guint i = 0; i < conditions->speeds->len; i++)
        if (g_array_index(conditions->speeds, ConditionsSpeed, i).rank == speed.rank)
            options_fail(options, "rank-speed", "rank %d is there twice", speed.rank);
    g_array_append_val(conditions->speeds, speed);
}

static void
read_jitter(Conditions *conditions, Options *options)
{
    SimJitter *jitter = &conditions->jitter;
    g_auto(GStrv) words = options_words(options, "jitter");
    g_auto(GStrv) straggler = options_words(options, "straggler");
    const char *rank = options_string(options, "rank-jitter", NULL);
    const char *memory = options_string(options, "memory-jitter", NULL);
    const guint n = words == NULL ? 0 : g_strv_length(words);

    if (n == 0) {
        if (straggler != NULL || rank != NULL || memory != NULL)
            options_fail(options,
                         straggler != NULL ? "straggler"
                         : rank != NULL    ? "rank-jitter"
                                           : "memory-jitter",
                         "is for --jitter");
        return;
    }
    if (n > 3)
        options_fail(options, "jitter", "expected SIGMA[,RUNS[,SEED]], got %u values", n);
    conditions->jitter_of_profile = g_str_equal(words[0], OF_PROFILE);
    if (!conditions->jitter_of_profile)
        jitter->op_sigma = jitter->rank_sigma = read_sigma(options, "jitter", words[0]);
    jitter->n_runs =
        n < 2 ? DEFAULT_RUNS : read_integer(options, "jitter", words[1], 1, SIM_JITTER_MAX_RUNS);
    jitter->seed =
        n < 3 ? DEFAULT_SEED : (uint64_t)read_integer(options, "jitter", words[2], 0, JSON_MAX_INT);
    jitter->memory_sigma = allocator_spread();
    conditions->has_rank_jitter = rank != NULL;
    if (rank != NULL)
        jitter->rank_sigma = read_sigma(options, "rank-jitter", rank);
    if (memory != NULL)
        jitter->memory_sigma = read_sigma(options, "memory-jitter", memory);
    jitter->straggler_slowdown = 1;
    if (straggler == NULL)
        return;
    jitter->straggler_fraction =
        read_number(options, "straggler", straggler[0], UNITS_KIND_FRACTION, 0, 1);
    jitter->straggler_slowdown = DEFAULT_SLOWDOWN;
    if (g_strv_length(straggler) > 2)
        options_fail(options, "straggler", "expected P[,SLOWDOWN]");
    else if (straggler[1] != NULL)
        jitter->straggler_slowdown = read_number(options, "straggler", straggler[1],
                                                 UNITS_KIND_NUMBER, 1, SIM_JITTER_MAX_SLOWDOWN);
}

void
conditions_read(Conditions *conditions, Options *options)
{
    g_auto(GStrv) speeds = options_words(options, "rank-speed");

    *conditions = (Conditions){0};
    if (speeds != NULL) {
        conditions->speeds = g_array_new(FALSE, FALSE, sizeof(ConditionsSpeed));
        for (size_t i = 0; speeds[i] != NULL; i++)
            read_speed(conditions, options, speeds[i]);
    }
    read_jitter(conditions, options);
    experts_read(&conditions->experts, options);
}

Conditions
conditions_of_profile(int64_t n_runs)
{
    return (Conditions){
        .jitter = {.n_runs = n_runs, .seed = DEFAULT_SEED, .straggler_slowdown = 1},
        .jitter_of_profile = true,
    };
}

Conditions
conditions_of_memory(int64_t n_runs)
{
    return (Conditions){
        .jitter = {.n_runs = n_runs,
                   .seed = DEFAULT_SEED,
                   .memory_sigma = allocator_spread(),
                   .straggler_slowdown = 1},
    };
}

void
conditions_clear(Conditions *conditions)
{
    g_clear_pointer(&conditions->speeds, g_array_unref);
    experts_clear(&conditions->experts);
}

/* --- use --- */

bool
conditions_apply(const Conditions *conditions, SchedulePlacement placement, Workload *workload,
                 GError **error)
{
    const GArray *speeds = conditions->speeds;

    for (guint i = 0; speeds != NULL && i < speeds->len; i++) {
        const ConditionsSpeed *speed = &g_array_index(speeds, ConditionsSpeed, i);
        if (speed->rank >= workload->n_ranks)
            return cmd_fail(error, CMD_ERROR_USAGE,
                            "--rank-speed: rank %d, but pipeline ranks are 0 to %d", speed->rank,
                            workload->n_ranks - 1);
        workload_set_rank_speed(workload, placement, speed->rank, speed->speed);
    }
    return true;
}

/* The spread of a rank's speed that lasts: whole seconds vary more than the independent variation
 * of the ops in them explains, and the rest is the rank's. */
static double
lasting_fraction(const ProfileVariation *variation)
{
    const double of_ops =
        variation->op_fraction * variation->op_fraction / (1 + 1 / variation->correlation_s);

    return sqrt(fmax(0.0, variation->rank_fraction * variation->rank_fraction - of_ops));
}

bool
conditions_apply_spread(const Conditions *conditions, const Profile *profile, SimJitter *jitter,
                        GError **error)
{
    if (!conditions->jitter_of_profile)
        return true;
    if (profile != NULL && profile->variation.is_known) {
        jitter->op_sigma = fmin(profile->variation.op_fraction, SIM_JITTER_MAX_SIGMA);
        jitter->correlation_s = profile->variation.correlation_s;
        if (!conditions->has_rank_jitter)
            jitter->rank_sigma = fmin(lasting_fraction(&profile->variation), SIM_JITTER_MAX_SIGMA);
        return true;
    }
    return cmd_fail(error, CMD_ERROR_USAGE,
                    "--jitter profile: how much times vary is known of profiles with measured "
                    "layers, two ranks busy at once (degas profile); give a number");
}
