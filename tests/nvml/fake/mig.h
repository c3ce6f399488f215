/* MIG: modes, devices, profiles. Handles of MIG devices are those of cards with numbers behind all others. */
struct attributes { unsigned multiprocessors, engines[5], slices, compute_slices; unsigned long long mib; };
struct profile_info { unsigned id, p2p, slices, instances, multiprocessors, engines[5]; unsigned long long mib; };
struct profile_info_v2 {
    unsigned version, id, p2p, slices, instances, multiprocessors, engines[5];
    unsigned long long mib;
    char name[96];
};
struct inside_info { struct card *card; unsigned id, profile, start, size; };

static const struct profile *find_profile(int number)
{
    for (int n = 0; n < seen->layout.profile_count; n++)
        if (seen->layout.profiles[n].number == number)
            return &seen->layout.profiles[n];
    return NULL;
}

int nvmlDeviceGetMigMode(struct card *card, unsigned *current, unsigned *pending)
{
    int code = enter_card("nvmlDeviceGetMigMode", card);
    if (code || !seen->layout.modes[card->id][0])
        return code ? code : NOT_SUPPORTED;
    *current = seen->layout.modes[card->id][0] - 1;
    *pending = seen->layout.modes[card->id][1] - 1;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(struct card *card, unsigned *answer)
{
    int code = enter_card("nvmlDeviceGetMaxMigDeviceCount", card);
    *answer = code || !is_in_mig_mode(card->id) ? 0 : PER_CARD - 1;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct card *card, unsigned index, struct card **answer)
{
    look();
    int id = MAX_CARDS + card->id * PER_CARD + index;
    *answer = &cards[id];
    cards[id].id = id;
    int exists = index < PER_CARD && is_in_mig_mode(card->id) && find_instance(&cards[id]);
    int code = enter("nvmlDeviceGetMigDeviceHandleByIndex", exists ? id : card->id);
    return code ? code : exists ? 0 : NOT_FOUND;
}

static int read_instance(const char *call, const struct card *device, const struct instance **answer)
{
    int code = enter_card(call, device);
    if (code)
        return code;
    *answer = is_instance(device) ? find_instance(device) : NULL;
    return *answer ? 0 : INVALID_ARGUMENT;
}

int nvmlDeviceGetGpuInstanceId(struct card *device, unsigned *answer)
{
    const struct instance *instance;
    int code = read_instance("nvmlDeviceGetGpuInstanceId", device, &instance);
    if (!code)
        *answer = instance->gpu_instance;
    return code;
}

int nvmlDeviceGetComputeInstanceId(struct card *device, unsigned *answer)
{
    const struct instance *instance;
    int code = read_instance("nvmlDeviceGetComputeInstanceId", device, &instance);
    if (!code)
        *answer = instance->compute_instance;
    return code;
}

int nvmlDeviceGetAttributes_v2(struct card *device, struct attributes *answer)
{
    const struct instance *instance;
    int code = read_instance("nvmlDeviceGetAttributes", device, &instance);
    if (code)
        return code;
    const struct profile *profile = find_profile(instance->number);
    answer->slices = instance->slices;
    answer->compute_slices = instance->compute_slices;
    answer->mib = instance->mib;
    answer->multiprocessors = 14 * instance->compute_slices;
    if (profile)
        memcpy(answer->engines, profile->engines, sizeof answer->engines);
    return 0;
}

static int read_profile(const char *call, struct card *card, unsigned number, const struct profile **answer)
{
    int code = enter_card(call, card);
    if (code || number >= MAX_PROFILES)
        return code ? code : INVALID_ARGUMENT;
    *answer = find_profile(number);
    return *answer ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstanceProfileInfo(struct card *card, unsigned number, struct profile_info *answer)
{
    const struct profile *profile;
    int code = read_profile("nvmlDeviceGetGpuInstanceProfileInfo", card, number, &profile);
    if (code)
        return code;
    answer->id = profile->id, answer->slices = profile->slices, answer->mib = profile->mib;
    memcpy(answer->engines, profile->engines, sizeof answer->engines);
    return 0;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(struct card *card, unsigned number, struct profile_info_v2 *answer)
{
    const struct profile *profile;
    int code = enter_card("nvmlDeviceGetGpuInstanceProfileInfoV", card); /* so that it can fail alone */
    code = code ? code : read_profile("nvmlDeviceGetGpuInstanceProfileInfo", card, number, &profile);
    if (code)
        return code;
    answer->id = profile->id, answer->slices = profile->slices, answer->mib = profile->mib;
    memcpy(answer->engines, profile->engines, sizeof answer->engines);
    snprintf(answer->name, sizeof answer->name, "%s", profile->name);
    return 0;
}

int nvmlDeviceGetGpuInstanceById(struct card *card, unsigned number, struct card **answer)
{
    int code = enter_card("nvmlDeviceGetGpuInstanceById", card);
    code = code ? code : check_aggregate(card);
    for (int n = 0; !code && n < seen->layout.instance_count; n++) {
        const struct instance *one = &seen->layout.instances[n];
        if (one->card == card->id && one->gpu_instance == (int)number)
            return *answer = &cards[MAX_CARDS + one->card * PER_CARD + one->index], 0;
    }
    return code ? code : NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(struct card *device, struct inside_info *answer)
{
    const struct instance *instance;
    int code = read_instance("nvmlGpuInstanceGetInfo", device, &instance);
    if (code)
        return code;
    const struct profile *profile = find_profile(instance->number);
    answer->id = instance->gpu_instance;
    answer->profile = profile ? profile->id : 0;
    return 0;
}
