/* Compute modes: those of the file, and what was set since, which a driver keeps when the process that set it ends. */

/* The last word in fake.modes, which has a line "CARD MODE" for each time that a mode was set; else that of the file. */
static unsigned find_mode(int wanted)
{
    int card, mode, found = seen->compute_modes[wanted];
    FILE *file = open_beside("fake.modes", "r");
    while (file && fscanf(file, "%d %d\n", &card, &mode) == 2)
        if (card == wanted)
            found = mode;
    if (file)
        fclose(file);
    return found;
}

int nvmlDeviceGetComputeMode(struct card *card, unsigned *answer)
{
    int code = enter_card("nvmlDeviceGetComputeMode", card);
    if (!code)
        *answer = find_mode(card->id);
    return code;
}

int nvmlDeviceSetComputeMode(struct card *card, unsigned mode)
{
    int code = enter_card("nvmlDeviceSetComputeMode", card);
    if (code || mode > 3 || is_instance(card))
        return code ? code : INVALID_ARGUMENT;
    if (is_in_mig_mode(card->id))
        return NOT_SUPPORTED;
    FILE *file = open_beside("fake.modes", "a");
    fprintf(file, "%d %u\n", card->id, mode);
    fclose(file);
    return 0;
}
