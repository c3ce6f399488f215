/* A small libnvidia-ml for tests of the real loading path. It reads fake.conf beside itself before every call:
 *
 *   cards 0 1 2        the cards it counts, in the order of their index; the UUID of card 2 is GPU-00000002-...
 *   driver 570.1.1     what it says of the driver; by default the version that it was compiled with (-DVERSION)
 *   kernel 570.1.1     the version of the kernel module, which nvmlInit refuses if it is not that of the library
 *   name CARD PRODUCT  the product of one card
 *   uuid CARD UUID
 *   hang CALL [CARD]   the call never returns
 *   abort CALL [CARD]  the call crashes the process
 *   await CALL [CARD]  the call does not return before the line is gone
 *   fail CALL CODE [CARD]      a CALL that ends in * means all that begin so
 *   event CARD XID [GPU-INSTANCE COMPUTE-INSTANCE]   card -1 is one that nobody knows
 *   ecc CARD single|double   both happen when the line is first there: add lines at the end
 *   vital CARD NAME VALUE    a reading of one card, see vital_names; what is not given is not supported
 *   types CARD MASK    the event types that the card has; by default all three that matter
 *   mode CARD NUMBER   the compute mode that the card has as long as nobody sets another (fake.modes has those set)
 *   mig CARD MODE [PENDING]  0 or 1; without it a card has no MIG mode
 *   instance CARD INDEX GPU-INSTANCE COMPUTE-INSTANCE SLICES COMPUTE-SLICES MIB PROFILE-NUMBER UUID
 *   profile NUMBER ID SLICES MIB COPY,DECODE,ENCODE,JPEG,FLOW [NAME]   one that all cards offer
 *   monitor            the process may ask cards in MIG mode as a whole
 *   sticky             what was read at nvmlInit holds until the process ends, as for a driver's session
 *   talk               writes to standard error in every call
 *   trace              writes each call that fails, hangs or crashes into fake.trace, with the monotonic second
 *
 * As a driver holds its device nodes, so nvmlInit opens the files nvidiactl and nvidia0, nvidia1... beside the library,
 * those that there are, until the process ends.
 * In a rule, the MIG device INDEX of card CARD has the number 64 + 8 * CARD + INDEX.
 * A rule for nvmlEventSetWait that names a card strikes the sets in which that card is registered. Any number of threads
 * may call at once: each looks at the file for itself.
 * Compiled with -DBASIC it has only old entry points, of the calls that nobody can do without.
 */
#define _GNU_SOURCE
#include "conf.h"

static void open_nodes(void)
{
    char name[32] = "nvidiactl";
    open_beside(name, "r");
    for (int n = 0; n < seen->count; n++) {
        snprintf(name, sizeof name, "nvidia%d", seen->listed[n]);
        open_beside(name, "r");
    }
}

int nvmlInit_v2(void)
{
    int code = enter("nvmlInit", -1);
    if (!code && *seen->kernel && strcmp(seen->kernel, VERSION))
        code = MISMATCH;
    if (!code && !started++)
        open_nodes();
    return code;
}

int nvmlDeviceGetCount(unsigned *answer)
{
    int code = enter("nvmlDeviceGetCount", -1);
    *answer = seen->count;
    return code;
}

int nvmlDeviceGetHandleByIndex(unsigned index, struct card **answer)
{
    look();
    if (index >= (unsigned)seen->count)
        return INVALID_ARGUMENT;
    int card = seen->listed[index];
    cards[card].id = card;
    *answer = &cards[card];
    return enter("nvmlDeviceGetHandleByIndex", card);
}

int nvmlDeviceGetUUID(struct card *card, char *answer, unsigned length)
{
    int code = enter_card("nvmlDeviceGetUUID", card);
    if (!code)
        snprintf(answer, length, "%s", is_instance(card) ? find_instance(card)->uuid : seen->uuids[card->id]);
    return code;
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };

/* Each card computes for the process whose ID is 1000 and the card's number. */
int nvmlDeviceGetComputeRunningProcesses_v2(struct card *card, unsigned *count, struct process *answer)
{
    int code = enter_card("nvmlDeviceGetComputeRunningProcesses", card);
    unsigned room = *count;
    code = code ? code : check_aggregate(card);
    *count = 1;
    if (code || !room)
        return code ? code : 7;
    *answer = (struct process){1000 + card->id, 1ull << 30, -1, -1};
    return 0;
}

#ifndef BASIC
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };

#include "mig.h"

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
    snprintf(answer, length, "%s", seen->driver);
    return code;
}

int nvmlSystemGetCudaDriverVersion_v2(int *answer)
{
    *answer = 12080;
    return enter("nvmlSystemGetCudaDriverVersion", -1);
}

static void write_pci(struct pci *answer, int card)
{
    snprintf(answer->bus_id, sizeof answer->bus_id, "00000000:%02X:00.0", 0x10 + card);
}

int nvmlDeviceGetPciInfo_v3(struct card *card, struct pci *answer)
{
    int code = enter_card("nvmlDeviceGetPciInfo", card);
    if (!code)
        write_pci(answer, card->id);
    return code;
}

/* As the driver: the product, and the profile of the compute instance. */
static int name_instance(const struct card *device, char *answer, unsigned length)
{
    const struct instance *instance = find_instance(device);
    const struct profile *profile = find_profile(instance->number);
    char part[8] = "";
    if (instance->compute_slices != instance->slices)
        snprintf(part, sizeof part, "%dc.", instance->compute_slices);
    const char *name = profile && *profile->name ? profile->name + 4 : "?";
    snprintf(answer, length, "%s MIG %s%s", seen->products[instance->card], part, name);
    return 0;
}

int nvmlDeviceGetName(struct card *card, char *answer, unsigned length)
{
    int code = enter_card("nvmlDeviceGetName", card);
    if (!code && is_instance(card))
        return name_instance(card, answer, length);
    if (!code)
        snprintf(answer, length, "%s", seen->products[card->id]);
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
    code = code ? code : check_aggregate(card);
    if (!code)
        answer->total = is_instance(card) ? (unsigned long long)find_instance(card)->mib << 20 : 16ull << 30;
    return code;
}

int nvmlDeviceGetCudaComputeCapability(struct card *card, int *major, int *minor)
{
    int code = enter_card("nvmlDeviceGetCudaComputeCapability", card);
    if (!code)
        *major = 8, *minor = 6;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct card *card, unsigned *count, struct process *answer)
{
    return nvmlDeviceGetComputeRunningProcesses_v2(card, count, answer);
}

#include "health.h"
#include "modes.h"
#endif
