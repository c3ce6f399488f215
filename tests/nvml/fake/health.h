/* How cards fare: the readings of the file, and its events. */
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned value_type;
    int code;
    union { unsigned word; double largest; } value;
};
struct fabric { unsigned char cluster[16]; unsigned status, clique, state; };
struct fabric_v2 { unsigned version; unsigned char cluster[16]; unsigned status, clique, state, mask; };
struct data { struct card *card; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
/* ``from`` is how many events there were when a card was registered: those are over. ``edits`` wakes at each edit. */
struct set { unsigned types[MAX_CARDS]; int from[MAX_CARDS], next, edits; };

static int read_vital(const char *call, const struct card *card, enum vital vital, int *answer)
{
    int code = enter_card(call, card);
    if (code)
        return code;
    *answer = seen->vitals[card->id][vital];
    return *answer < 0 ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetFieldValues(struct card *card, int count, struct field *fields)
{
    int value, code = enter_card("nvmlDeviceGetFieldValues", card);
    for (int n = 0; !code && n < count; n++) {
        value = fields[n].id == 230 ? seen->vitals[card->id][RECOVERY] : -1;
        fields[n].value_type = 1;
        fields[n].code = value < 0 ? NOT_SUPPORTED : 0;
        fields[n].value.word = value;
    }
    return code;
}

int nvmlDeviceGetRemappedRows(struct card *card, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    *corrected = *uncorrected = *pending = 0;
    return read_vital("nvmlDeviceGetRemappedRows", card, REMAP_FAILURE, (int *)failed);
}

int nvmlDeviceGetRetiredPagesPendingStatus(struct card *card, unsigned *pending)
{
    return read_vital("nvmlDeviceGetRetiredPagesPendingStatus", card, PAGES_PENDING, (int *)pending);
}

int nvmlDeviceGetMemoryErrorCounter(struct card *card, unsigned kind, unsigned counter, unsigned location,
                                    unsigned long long *answer)
{
    int value, code;
    (void)kind, (void)counter;
    code = read_vital("nvmlDeviceGetMemoryErrorCounter", card, location == 2 ? ECC_MEMORY : ECC_SRAM, &value);
    *answer = value;
    return code == NOT_SUPPORTED && location == 7 ? INVALID_ARGUMENT : code; /* as an older driver */
}

int nvmlDeviceGetTotalEccErrors(struct card *card, unsigned kind, unsigned counter, unsigned long long *answer)
{
    int value, code = read_vital("nvmlDeviceGetTotalEccErrors", card, ECC_TOTAL, &value);
    (void)kind, (void)counter;
    *answer = value;
    return code;
}

int nvmlDeviceGetNvLinkState(struct card *card, unsigned link, unsigned *active)
{
    int links, code = read_vital("nvmlDeviceGetNvLinkState", card, LINKS, &links);
    if (code)
        return code;
    if (link >= (unsigned)links)
        return INVALID_ARGUMENT;
    int down = seen->vitals[card->id][LINKS_DOWN];
    *active = !(down > 0 && down >> link & 1);
    return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct card *card, unsigned link, struct pci *answer)
{
    int code = enter_card("nvmlDeviceGetNvLinkRemotePciInfo", card);
    (void)link;
    if (!code)
        write_pci(answer, card->id ^ 1); /* cards are linked in pairs */
    return code;
}

/* ``to_switch`` has a bit for each link that leads to one. */
int nvmlDeviceGetNvLinkRemoteDeviceType(struct card *card, unsigned link, unsigned *kind)
{
    int links, code = read_vital("nvmlDeviceGetNvLinkRemoteDeviceType", card, TO_SWITCH, &links);
    *kind = !code && links >> link & 1 ? 2 : 0;
    return code;
}

/* Two cards have the nearer one of their ``ancestor`` levels in common. */
int nvmlDeviceGetTopologyCommonAncestor(struct card *first, struct card *second, unsigned *level)
{
    int a, b, code = read_vital("nvmlDeviceGetTopologyCommonAncestor", first, ANCESTOR, &a);
    code = code ? code : read_vital("nvmlDeviceGetTopologyCommonAncestor", second, ANCESTOR, &b);
    *level = !code && a < b ? a : b;
    return code;
}

static void write_clique(const struct card *card, unsigned char cluster[16], unsigned *clique)
{
    int value = seen->vitals[card->id][FABRIC_CLIQUE];
    cluster[15] = value > 0;
    *clique = value > 0 ? value : 0;
}

int nvmlDeviceGetGpuFabricInfo(struct card *card, struct fabric *answer)
{
    int code = read_vital("nvmlDeviceGetGpuFabricInfo", card, FABRIC_STATE, (int *)&answer->state);
    if (!code) {
        answer->status = seen->vitals[card->id][FABRIC_STATUS];
        write_clique(card, answer->cluster, &answer->clique);
    }
    return code;
}

int nvmlDeviceGetGpuFabricInfoV(struct card *card, struct fabric_v2 *answer)
{
    int code = enter_card("nvmlDeviceGetGpuFabricInfoV", card); /* so that it can fail alone */
    code = code ? code : read_vital("nvmlDeviceGetGpuFabricInfo", card, FABRIC_STATE, (int *)&answer->state);
    if (!code) {
        answer->status = seen->vitals[card->id][FABRIC_STATUS];
        answer->mask = seen->vitals[card->id][FABRIC_MASK];
        write_clique(card, answer->cluster, &answer->clique);
    }
    return code;
}

int nvmlEventSetCreate(struct set **answer)
{
    char directory[PATH_MAX];
    int code = enter("nvmlEventSetCreate", -1);
    if (code)
        return code;
    *answer = calloc(1, sizeof **answer);
    (*answer)->edits = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    find_directory(directory);
    inotify_add_watch((*answer)->edits, directory, IN_MOVED_TO | IN_CLOSE_WRITE);
    return 0;
}

int nvmlDeviceGetSupportedEventTypes(struct card *card, unsigned long long *answer)
{
    int code = enter_card("nvmlDeviceGetSupportedEventTypes", card);
    if (!code)
        *answer = seen->types[card->id];
    return code;
}

int nvmlDeviceRegisterEvents(struct card *card, unsigned long long types, struct set *set)
{
    int code = enter_card("nvmlDeviceRegisterEvents", card);
    if (!code) {
        set->types[card->id] = types;
        set->from[card->id] = seen->event_count;
    }
    return code;
}

static int is_for(const struct set *set, const struct event *event, int place)
{
    return event->card < 0 || (place >= set->from[event->card] && set->types[event->card] & event->type);
}

static int fetch(struct set *set, struct data *answer)
{
    static struct card stranger;
    if (set->next > seen->event_count)
        set->next = seen->event_count;
    while (set->next < seen->event_count) {
        int place = set->next++;
        const struct event *event = &seen->events[place];
        if (!is_for(set, event, place))
            continue;
        *answer = (struct data){event->card < 0 ? &stranger : &cards[event->card], event->type, event->data,
                                event->gpu_instance, event->compute_instance};
        return 1;
    }
    return 0;
}

static int enter_wait(const struct set *set)
{
    look();
    for (int n = 0; n < seen->rule_count; n++) {
        const struct rule *rule = &seen->rules[n];
        if (is_named(rule, "nvmlEventSetWait") && (rule->card < 0 || set->types[rule->card]))
            return strike(rule, "nvmlEventSetWait");
    }
    return check_started("nvmlEventSetWait");
}

int nvmlEventSetWait_v2(struct set *set, struct data *answer, unsigned timeout_ms)
{
    char edits[4096];
    double until = read_clock_s() + timeout_ms / 1e3, left;
    struct pollfd watched = {.fd = set->edits, .events = POLLIN};
    int code;
    while (!(code = enter_wait(set)) && !fetch(set, answer)) {
        left = until - read_clock_s();
        if (left <= 0)
            return TIMEOUT;
        poll(&watched, 1, left * 1000 + 1);
        while (read(set->edits, edits, sizeof edits) > 0)
            ;
    }
    return code;
}
