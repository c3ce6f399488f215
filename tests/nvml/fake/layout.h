/* The MIG devices of the file: what there is, and which lines say so. */
#define MAX_INSTANCES 512
#define MAX_PROFILES 32
#define PER_CARD 8

struct instance { int card, index, gpu_instance, compute_instance, slices, compute_slices, mib, number; char uuid[96]; };
struct profile { int number, id, slices, mib; unsigned engines[5]; char name[96]; };
struct layout {
    int modes[MAX_CARDS][2], monitor, instance_count, profile_count;
    struct instance instances[MAX_INSTANCES];
    struct profile profiles[MAX_PROFILES];
};

/* Whether the line is one of these. */
static int read_layout_line(struct layout *layout, const char *line)
{
    int card, current, pending;
    struct instance one = {0};
    struct profile kind = {0};
    if (!strncmp(line, "monitor", 7))
        return layout->monitor = 1;
    switch (sscanf(line, "mig %d %d %d", &card, &current, &pending)) {
    case 2:
        pending = current; /* fall through */
    case 3:
        layout->modes[card][0] = 1 + current;
        layout->modes[card][1] = 1 + pending;
        return 1;
    }
    if (sscanf(line, "instance %d %d %d %d %d %d %d %d %95s", &one.card, &one.index, &one.gpu_instance,
               &one.compute_instance, &one.slices, &one.compute_slices, &one.mib, &one.number, one.uuid) == 9)
        return layout->instances[layout->instance_count++] = one, 1;
    if (sscanf(line, "profile %d %d %d %d %u,%u,%u,%u,%u %95[^\n]", &kind.number, &kind.id, &kind.slices, &kind.mib,
               &kind.engines[0], &kind.engines[1], &kind.engines[2], &kind.engines[3], &kind.engines[4],
               kind.name) >= 9)
        return layout->profiles[layout->profile_count++] = kind, 1;
    return 0;
}
