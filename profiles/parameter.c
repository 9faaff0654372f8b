#include "profiles/parameter.h"

const ProfileParameterInfo profile_parameter_info[PROFILE_PARAMETERS_N] = {
#define X(name, value, min, max, fit, spread, what)                                                \
    {#name, offsetof(ProfileParameters, name), value, min, max, PROFILE_FIT_##fit, spread, what},
    PROFILE_PARAMETERS(X)
#undef X
};

double
profile_parameter(const ProfileParameters *parameters, int i)
{
    g_return_val_if_fail(parameters != NULL && i >= 0 && i < PROFILE_PARAMETERS_N, 0.0);

    return *(const double *)(const void *)((const char *)parameters +
                                           profile_parameter_info[i].offset);
}

void
profile_parameter_set(ProfileParameters *parameters, int i, double value)
{
    g_return_if_fail(parameters != NULL && i >= 0 && i < PROFILE_PARAMETERS_N);

    *(double *)(void *)((char *)parameters + profile_parameter_info[i].offset) = value;
}
