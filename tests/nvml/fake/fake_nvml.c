/* A small libnvidia-ml for tests of the real loading path. It reads fake.conf beside itself before every call:
 *
 *   cards 0 1 2        the cards it counts, in the order of their index; the UUID of card 2 is GPU-00000002-...
 *   driver 570.1.1     what it says of the driver
 *   name CARD PRODUCT  the product of one card
 *   hang CALL [CARD]   the call never returns
 *   abort CALL [CARD]  the call crashes the process
 *   fail CALL CODE [CARD]
 *   sticky             what was read at nvmlInit holds until the process ends, as for a driver's session
 *   talk               writes to standard error in every call
 *
 * Compiled with -DBASIC it has only the oldest entry points of the calls that nobody can do without.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CARDS 64
#define MAX_RULES 64
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2

struct card { int id; };
struct rule { char kind[8]; char call[64]; int code; int card; };

static struct card cards[MAX_CARDS];
static struct rule rules[MAX_RULES];
static int listed[MAX_CARDS], count, rule_count, sticky, talk, started;
static char driver[64], products[MAX_CARDS][64];

static void read_conf(void)
{
    Dl_info self;
    char path[4096], line[256], product[64];
    int named;
    if (sticky)
        return;
    dladdr((void *)read_conf, &self);
    snprintf(path, sizeof path, "%s", self.dli_fname);
    strcpy(strrchr(path, '/') + 1, "fake.conf");
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    count = rule_count = talk = 0;
    strcpy(driver, "570.1.1");
    for (int card = 0; card < MAX_CARDS; card++)
        strcpy(products[card], "NVIDIA Fake");
    while (fgets(line, sizeof line, file)) {
        struct rule *rule = &rules[rule_count];
        if (!strncmp(line, "cards", 5)) {
            for (char *word = strtok(line + 5, " \n"); word && count < MAX_CARDS; word = strtok(NULL, " \n"))
                listed[count++] = atoi(word);
        } else if (sscanf(line, "driver %63s", driver) == 1) {
        } else if (sscanf(line, "name %d %63[^\n]", &named, product) == 2) {
            strcpy(products[named], product);
        } else if (!strncmp(line, "sticky", 6)) {
            sticky = 1;
        } else if (!strncmp(line, "talk", 4)) {
            talk = 1;
        } else if (sscanf(line, "fail %63s %d", rule->call, &rule->code) == 2) {
            rule->card = -1;
            sscanf(line, "fail %*s %*d %d", &rule->card);
            strcpy(rule->kind, "fail");
            rule_count++;
        } else if (sscanf(line, "%7s %63s", rule->kind, rule->call) == 2) {
            rule->card = -1;
            sscanf(line, "%*s %*s %d", &rule->card);
            rule_count++;
        }
    }
    fclose(file);
}

static int enter(const char *call, int card)
{
    read_conf();
    if (talk)
        for (int line = 0; line < 2000; line++)
            fprintf(stderr, "%s: %d lines of chatter that nobody has asked for\n", call, line);
    for (int n = 0; n < rule_count; n++) {
        if (strcmp(rules[n].call, call) || (rules[n].card >= 0 && rules[n].card != card))
            continue;
        if (!strcmp(rules[n].kind, "hang"))
            for (;;)
                pause();
        if (!strcmp(rules[n].kind, "abort"))
            abort();
        return rules[n].code;
    }
    return started || !strcmp(call, "nvmlInit") ? 0 : UNINITIALIZED;
}

static int enter_card(const char *call, const struct card *card)
{
    return card ? enter(call, card->id) : INVALID_ARGUMENT;
}

int nvmlInit_v2(void)
{
    int code = enter("nvmlInit", -1);
    started += !code;
    return code;
}

int nvmlShutdown(void) { return enter("nvmlShutdown", -1); }

int nvmlDeviceGetCount(unsigned *answer)
{
    int code = enter("nvmlDeviceGetCount", -1);
    *answer = count;
    return code;
}

int nvmlDeviceGetHandleByIndex(unsigned index, struct card **answer)
{
    read_conf();
    if (index >= (unsigned)count)
        return INVALID_ARGUMENT;
    cards[listed[index]].id = listed[index];
    *answer = &cards[listed[index]];
    return enter("nvmlDeviceGetHandleByIndex", listed[index]);
}

int nvmlDeviceGetUUID(struct card *card, char *answer, unsigned length)
{
    int code = enter_card("nvmlDeviceGetUUID", card);
    if (!code)
        snprintf(answer, length, "GPU-%08x-0000-0000-0000-000000000000", card->id);
    return code;
}

#ifndef BASIC
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

int nvmlDeviceGetCount_v2(unsigned *answer) { return nvmlDeviceGetCount(answer); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct card **answer)
{
    return nvmlDeviceGetHandleByIndex(index, answer);
}

int nvmlSystemGetDriverVersion(char *answer, unsigned length)
{
    int code = enter("nvmlSystemGetDriverVersion", -1);
    snprintf(answer, length, "%s", driver);
    return code;
}

int nvmlSystemGetCudaDriverVersion_v2(int *answer)
{
    *answer = 12080;
    return enter("nvmlSystemGetCudaDriverVersion", -1);
}

int nvmlDeviceGetPciInfo_v3(struct card *card, struct pci *answer)
{
    int code = enter_card("nvmlDeviceGetPciInfo", card);
    if (!code)
        snprintf(answer->bus_id, sizeof answer->bus_id, "00000000:%02X:00.0", 0x10 + card->id);
    return code;
}

int nvmlDeviceGetName(struct card *card, char *answer, unsigned length)
{
    int code = enter_card("nvmlDeviceGetName", card);
    if (!code)
        snprintf(answer, length, "%s", products[card->id]);
    return code;
}

int nvmlDeviceGetMinorNumber(struct card *card, unsigned *answer)
{
    int code = enter_card("nvmlDeviceGetMinorNumber", card);
    if (!code)
        *answer = card->id;
    return code;
}

int nvmlDeviceGetMemoryInfo(struct card *card, struct memory *answer)
{
    int code = enter_card("nvmlDeviceGetMemoryInfo", card);
    if (!code)
        answer->total = 16ull << 30;
    return code;
}

int nvmlDeviceGetCudaComputeCapability(struct card *card, int *major, int *minor)
{
    int code = enter_card("nvmlDeviceGetCudaComputeCapability", card);
    if (!code)
        *major = 8, *minor = 6;
    return code;
}

int nvmlDeviceGetMigMode(struct card *card, unsigned *current, unsigned *pending)
{
    int code = enter_card("nvmlDeviceGetMigMode", card);
    *current = *pending = 0;
    return code ? code : 3;
}
#endif
