/*
 * cli/draw/plot_memory_picture.h - what a picture of memory shows: every rank at its peak, by owner, and
 * one rank over time; as a table.  What draws it is cli/draw/plot_memory.c.
 *
 * Internal to those two files.
 */
#ifndef CLI_DRAW_PLOT_MEMORY_PICTURE_H
#define CLI_DRAW_PLOT_MEMORY_PICTURE_H

#include "base/table.h"
#include "cli/draw/plot.h"

G_BEGIN_DECLS

/* One rank at its peak. */
typedef struct {
    int64_t total_bytes, at_ns;
    int64_t bytes[TRACE_MEMORY_N];
} MemoryPeak;

typedef struct {
    const char *name;
    const Trace *trace; /* (borrowed, nullable) of a report */
    GArray *peaks;      /* (owned) of MemoryPeak, by rank */
    int32_t fullest;    /* the first rank with the highest peak */
    int32_t shown;      /* the rank whose time is drawn; -1 when added: the fullest */
} MemoryPanel;

typedef struct {
    MemoryPanel panels[PLOT_MAX_TRACES];
    size_t n_panels;
    bool has_time;
    int64_t most_bytes, span_ns, limit_bytes;
} MemoryPicture;

void memory_picture_clear(MemoryPicture *picture);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(MemoryPicture, memory_picture_clear)

/* Returns: (owned) of MemoryPeak, by rank: the first highest point of each.  Cost: O(events). */
GArray *memory_peaks_of_trace(const Trace *trace);
GArray *memory_peaks_of_report(const Report *report);

/* Adds @panel, whose peaks the picture owns from now on. */
void memory_picture_add(MemoryPicture *picture, const MemoryPanel *panel);

/* (borrowed) of the fullest rank. */
const MemoryPeak *memory_panel_highest(const MemoryPanel *panel);

/* Whether anyone holds anything of plot_owners[@k] at a peak. */
bool memory_picture_has(const MemoryPicture *picture, size_t k);

/*
 * Returns: (owned) rows of parts `peak` (each rank at its peak) and `time` (the shown rank as a
 * staircase, at most one step up and one down in each of @n_bins of the longest trace).
 */
Table *memory_picture_table(const MemoryPicture *picture, int64_t n_bins);

G_END_DECLS

#endif /* CLI_DRAW_PLOT_MEMORY_PICTURE_H */
