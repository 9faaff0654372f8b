#include "profiles/parameter.h"

const ProfileParameterInfo profile_parameter_info[PROFILE_PARAMETERS_N] = {
#define X(name, value, min, max, fit, spread, what)                                                \
    {#name, value, min, max, PROFILE_FIT_##fit, spread, what},
    PROFILE_PARAMETERS(X)
#undef X
};

/* Each row of the table beside its member; a cast of the struct to an array would be shorter and
 * would rest on its layout. */
static double *
member(ProfileParameters *parameters, int i)
{
    double *const members[PROFILE_PARAMETERS_N] = {
#define X(name, value, min, max, fit, spread, what) &parameters->name,
        PROFILE_PARAMETERS(X)
#undef X
    };

    return members[i];
}

double
profile_parameter(const ProfileParameters *parameters, int i)
{
    ProfileParameters copy;

    g_return_val_if_fail(parameters != NULL && i >= 0 && i < PROFILE_PARAMETERS_N, 0.0);

    copy = *parameters;
    return *member(&copy, i);
}

void
profile_parameter_set(ProfileParameters *parameters, int i, double value)
{
    g_return_if_fail(parameters != NULL && i >= 0 && i < PROFILE_PARAMETERS_N);

    *member(parameters, i) = value;
}
