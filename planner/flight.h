/*
 * planner/flight.h - how many units each rank of a schedule holds at once, remembered by shape.
 *
 * Internal to planner/.  That number does not depend on times, so many points of the space share
 * it; schedules are built for it once per shape.
 *
 * Thread-safety: all functions may be called from several threads at once; answers do not depend on
 * the order of calls.
 */
#ifndef PLANNER_FLIGHT_H
#define PLANNER_FLIGHT_H

#include "schedule/schedule.h"

G_BEGIN_DECLS

/* Opaque; see flight.c. */
typedef struct PlanFlights PlanFlights;

PlanFlights *plan_flights_new(void);
void plan_flights_free(PlanFlights *flights);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanFlights, plan_flights_free)

/*
 * Returns: a lower bound on the (micro-batch, chunk, slice) triples that @rank holds whole at once,
 * from F to B or I; exact but for schedules too large to build for this.  @shape is one the family
 * has.
 */
int64_t plan_flights_least(PlanFlights *flights, const ScheduleFamily *family,
                           const ScheduleShape *shape, int32_t rank);

G_END_DECLS

#endif /* PLANNER_FLIGHT_H */
