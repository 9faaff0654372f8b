/*
 * cli/validate/residuals.h - where errors come from: the columns of the rows that explain most of
 * them.
 *
 * A column that cuts rows into groups explains the share of the errors' variance that lies between
 * the groups' means, less what as many groups would explain by chance (adjusted R^2).
 */
#ifndef CLI_VALIDATE_RESIDUALS_H
#define CLI_VALIDATE_RESIDUALS_H

#include "cli/validate/validation.h"

G_BEGIN_DECLS

typedef struct {
    char *value; /* (owned) of the column */
    size_t n;
    double mape, bias; /* of the group's errors */
} ResidualGroup;

typedef struct {
    const char *column;
    double explained; /* 0 to 1 */
    GArray *groups;   /* (owned) of ResidualGroup, in order of appearance */
} ResidualColumn;

/*
 * @cases, @errors  n rows and their signed errors (NaN: left out).
 * Returns: (owned) GArray of ResidualColumn: at most @max_columns that explain a tenth or more, the
 * best first; of columns that cut the rows in the same way only the first.
 */
GArray *validation_residual_columns(const GPtrArray *cases, const double *errors,
                                    guint max_columns);

G_END_DECLS

#endif /* CLI_VALIDATE_RESIDUALS_H */
