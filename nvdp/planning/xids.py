"""The XIDs of the NVIDIA driver, as its public catalogue lists them, and which kind of trouble each one is.

Facts from "Analyzing Xid Errors with the Xid Catalog" of NVIDIA's documentation, edition 610 as of July 2026, with 172
entries; the meanings are in our own words. The catalogue is about GPUs from Ampere on: numbers that only older GPUs
raise are in it too, with the advice to ask the vendor.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

CATALOGUE_EDITION: Final = "610"
CATALOGUE_ENTRIES: Final = 172


class XidClass(enum.Enum):
    """What has to happen before a GPU with this fault is to be trusted again.

    APPLICATION: the application ends, and nothing more. RESET: the GPU is reset, or more. NONE: it is information.
    """

    APPLICATION = "application"
    RESET = "reset"
    NONE = "none"


class Advice(enum.Enum):
    """What the catalogue recommends at once, and the class that we make of it.

    Where it leaves open whether a reset is needed, one is: a GPU that is idle for too long costs less than one that
    spoils what runs on it.
    """

    RESTART_APPLICATION = ("restart the application", XidClass.APPLICATION)
    # Follows another XID, whose advice counts, or the end of an application; the Fabric Manager is restarted at most.
    FOLLOW_OTHER_XID = ("follow the XID before it", XidClass.APPLICATION)
    NOTHING = ("nothing", XidClass.NONE)
    # No action is listed, and the remarks say that the GPU goes on without a reset.
    WATCH = ("watch it", XidClass.NONE)
    # It only says that the driver's recommendation changed; that itself is read from NVML.
    READ_RECOVERY_ACTION = ("do what the driver asks for", XidClass.NONE)
    RESET_GPU = ("reset the GPU", XidClass.RESET)
    REBOOT = ("reboot the node", XidClass.RESET)
    REBOOT_GUEST = ("reboot the virtual machine", XidClass.RESET)
    # Contained errors bring an XID 94 as well, but nothing in a 48 says that this was one.
    MEMORY_WORKFLOW = ("reset the GPU, drained first where rows are remapped", XidClass.RESET)
    # The verdict hangs on the link's registers, which stand in the kernel's log and not in NVML's events.
    NVLINK_WORKFLOW = ("decode the link's registers; a reset unless they say otherwise", XidClass.RESET)
    CHECK_CABLES = ("check power cables and seating", XidClass.RESET)
    UPDATE_SOFTWARE = ("update driver and firmware", XidClass.RESET)
    CHECK_UNIFIED_MEMORY = ("check the faults of unified memory", XidClass.RESET)
    CONTACT_SUPPORT = ("contact the vendor", XidClass.RESET)
    # No action is listed, and no remark says that the GPU goes on.
    UNSTATED = ("nothing is stated", XidClass.RESET)

    def __init__(self, text: str, xid_class: XidClass) -> None:
        self.text = text
        self.xid_class = xid_class


class Xid(msgspec.Struct, frozen=True):
    """One entry. ``mnemonic`` is the driver's name of it, ``meaning`` goes on after "XID 79, "."""

    number: int
    mnemonic: str
    meaning: str
    advice: Advice


_APP: Final = Advice.RESTART_APPLICATION
_NO: Final = Advice.NOTHING
_RESET: Final = Advice.RESET_GPU
_LINK: Final = Advice.NVLINK_WORKFLOW
_VENDOR: Final = Advice.CONTACT_SUPPORT

_ENTRIES: Final = (
    Xid(1, "ROBUST_CHANNEL_FIFO_ERROR_FIFO_METHOD", "fault of an older GPU's command queue", _VENDOR),
    Xid(2, "ROBUST_CHANNEL_FIFO_ERROR_SW_METHOD", "fault of an older GPU's command queue", _VENDOR),
    Xid(3, "ROBUST_CHANNEL_FIFO_ERROR_UNK_METHOD", "fault of an older GPU's command queue", _VENDOR),
    Xid(4, "ROBUST_CHANNEL_FIFO_ERROR_CHANNEL_BUSY", "an older GPU's command queue stayed busy", _VENDOR),
    Xid(5, "ROBUST_CHANNEL_FIFO_ERROR_RUNOUT_OVERFLOW", "an older GPU's command queue overflowed", _VENDOR),
    Xid(6, "ROBUST_CHANNEL_FIFO_ERROR_PARSE_ERR", "an older GPU could not parse its command queue", _VENDOR),
    Xid(7, "ROBUST_CHANNEL_FIFO_ERROR_PTE_ERR", "an older GPU's command queue met a bad page", _VENDOR),
    Xid(8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "the GPU stopped working on a command queue", _APP),
    Xid(9, "ROBUST_CHANNEL_GR_ERROR_INSTANCE", "fault of an older GPU's compute engine", _VENDOR),
    Xid(10, "ROBUST_CHANNEL_GR_ERROR_SINGLE_STEP", "fault of an older GPU's compute engine", _VENDOR),
    Xid(11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", "a broken command stream", _APP),
    Xid(12, "ROBUST_CHANNEL_GR_ERROR_SW_METHOD", "fault of an older GPU's compute engine", _VENDOR),
    Xid(13, "ROBUST_CHANNEL_GR_EXCEPTION", "a program ran into a fault of the compute engine", _APP),
    Xid(14, "ROBUST_CHANNEL_FAKE_ERROR", "a fault injected for a test", _NO),
    Xid(15, "ROBUST_CHANNEL_SCANLINE_TIMEOUT", "fault of an older GPU's display", _VENDOR),
    Xid(16, "ROBUST_CHANNEL_VBLANK_CALLBACK_TIMEOUT", "fault of an older GPU's display", _VENDOR),
    Xid(17, "ROBUST_CHANNEL_PARAMETER_ERROR", "fault of an older GPU's display", _VENDOR),
    Xid(18, "ROBUST_CHANNEL_BUS_MASTER_TIMEOUT_ERROR", "an older GPU waited too long for the bus", _VENDOR),
    Xid(19, "ROBUST_CHANNEL_DISP_MISSED_NOTIFIER", "fault of an older GPU's display", _VENDOR),
    Xid(20, "ROBUST_CHANNEL_MPEG_ERROR_SW_METHOD", "fault of an older GPU's video engine", _VENDOR),
    Xid(21, "ROBUST_CHANNEL_ME_ERROR_SW_METHOD", "fault of an older GPU's video engine", _VENDOR),
    Xid(22, "ROBUST_CHANNEL_VP_ERROR_SW_METHOD", "fault of an older GPU's video engine", _VENDOR),
    Xid(23, "ROBUST_CHANNEL_RC_LOGGING_ENABLED", "an older driver's note about its log", _VENDOR),
    Xid(24, "ROBUST_CHANNEL_GR_SEMAPHORE_TIMEOUT", "an older GPU waited too long for a semaphore", _VENDOR),
    Xid(25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", "an illegal command stream", _APP),
    Xid(26, "ROBUST_CHANNEL_FIFO_ERROR_FBISTATE_TIMEOUT", "an older GPU waited too long for its memory", _VENDOR),
    Xid(27, "ROBUST_CHANNEL_VP_ERROR", "fault of an older GPU's video engine", _VENDOR),
    Xid(28, "ROBUST_CHANNEL_VP2_ERROR", "fault of an older GPU's video engine", _VENDOR),
    Xid(29, "ROBUST_CHANNEL_BSP_ERROR", "fault of an older GPU's video engine", _VENDOR),
    Xid(30, "ROBUST_CHANNEL_BAD_ADDR_ACCESS", "access to a bad address on an older GPU", _VENDOR),
    Xid(31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "a program touched memory that it does not have", _APP),
    Xid(32, "ROBUST_CHANNEL_PBDMA_ERROR", "a command stream arrived broken over PCIe", _APP),
    Xid(33, "ROBUST_CHANNEL_SEC_ERROR", "fault of an older GPU's security engine", _VENDOR),
    Xid(34, "ROBUST_CHANNEL_MSVLD_ERROR", "fault of an older GPU's video engine", _VENDOR),
    Xid(35, "ROBUST_CHANNEL_MSPDEC_ERROR", "fault of an older GPU's video engine", _VENDOR),
    Xid(36, "ROBUST_CHANNEL_MSPPP_ERROR", "fault of an older GPU's video engine", _VENDOR),
    Xid(37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", "the driver asked the firmware for the unknown", _NO),
    Xid(38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", "the firmware's watchdog ran out", _NO),
    Xid(39, "ROBUST_CHANNEL_CE0_ERROR", "fault of copy engine 0", _APP),
    Xid(40, "ROBUST_CHANNEL_CE1_ERROR", "fault of copy engine 1", _APP),
    Xid(41, "ROBUST_CHANNEL_CE2_ERROR", "fault of copy engine 2", _APP),
    Xid(42, "ROBUST_CHANNEL_VIC_ERROR", "fault of an older GPU's image engine", _VENDOR),
    Xid(43, "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR", "a program had to be ended; the GPU is well", _NO),
    Xid(44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", "fault of the compute engine between two programs", _NO),
    Xid(45, "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL", "a program was cleaned away", Advice.FOLLOW_OTHER_XID),
    Xid(46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "the GPU stopped working", _RESET),
    Xid(47, "ROBUST_CHANNEL_NVENC0_ERROR", "fault of an older GPU's encoder 0", _VENDOR),
    Xid(48, "ROBUST_CHANNEL_GPU_ECC_DBE", "an uncorrectable (double-bit) memory error", Advice.MEMORY_WORKFLOW),
    Xid(49, "SILENT_RUNNING_CONSTANT_LEVEL_SET_BY_REGISTRY", "the clocks of an older GPU are held", _VENDOR),
    Xid(50, "SILENT_RUNNING_LEVEL_TRANSITION_DUE_TO_RC_ERROR", "an older GPU changed its clocks on a fault", _VENDOR),
    Xid(51, "SILENT_RUNNING_STRESS_TEST_FAILURE", "an older GPU failed its stress test", _VENDOR),
    Xid(52, "SILENT_RUNNING_LEVEL_TRANS_DUE_TO_TEMP_RISE", "an older GPU changed its clocks, too hot", _VENDOR),
    Xid(53, "SILENT_RUNNING_TEMP_REDUCED_CLOCKING", "an older GPU lowered its clocks, too hot", _VENDOR),
    Xid(54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "the board's power cable is not connected", Advice.CHECK_CABLES),
    Xid(55, "SILENT_RUNNING_TEMPERATURE_READ_ERROR", "an older GPU's temperature cannot be read", _VENDOR),
    Xid(56, "DISPLAY_CHANNEL_EXCEPTION", "fault of an older GPU's display", _VENDOR),
    Xid(57, "FB_LINK_TRAINING_FAILURE_ERROR", "an older GPU could not train the link to its memory", _VENDOR),
    Xid(58, "FB_MEMORY_ERROR", "a memory error of an older GPU", _VENDOR),
    Xid(59, "PMU_ERROR", "fault of an older GPU's power controller", _VENDOR),
    Xid(60, "ROBUST_CHANNEL_SEC2_ERROR", "fault of the security engine", _APP),
    Xid(61, "PMU_BREAKPOINT", "an older GPU's power controller ran into a breakpoint", _VENDOR),
    Xid(62, "PMU_HALT_ERROR", "the power controller halted", _RESET),
    # On older GPUs the page is in use until a reset: that is read from NVML (retired pages pending).
    Xid(63, "INFOROM_DRAM_RETIREMENT_EVENT", "faulty memory is marked for repair", _NO),
    Xid(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "faulty memory could not be marked for repair", _RESET),
    Xid(65, "ROBUST_CHANNEL_NVENC1_ERROR", "fault of an older GPU's encoder 1", _VENDOR),
    Xid(66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", "the driver did what it may not", _NO),
    Xid(67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", "the driver did what it may not", _NO),
    Xid(68, "ROBUST_CHANNEL_NVDEC0_ERROR", "fault of decoder 0", _APP),
    Xid(69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "a program used the compute engine wrongly", _APP),
    Xid(70, "ROBUST_CHANNEL_CE3_ERROR", "fault of copy engine 3", _APP),
    Xid(71, "ROBUST_CHANNEL_CE4_ERROR", "fault of copy engine 4", _APP),
    Xid(72, "ROBUST_CHANNEL_CE5_ERROR", "fault of copy engine 5", _APP),
    Xid(73, "ROBUST_CHANNEL_NVENC2_ERROR", "fault of an older GPU's encoder 2", _VENDOR),
    # The other end may be to blame; it too asks for a reset, of one of the two.
    Xid(74, "NVLINK_ERROR", "fault of an NVLink", _LINK),
    Xid(75, "ROBUST_CHANNEL_CE6_ERROR", "fault of copy engine 6", _APP),
    Xid(76, "ROBUST_CHANNEL_CE7_ERROR", "fault of copy engine 7", _APP),
    Xid(77, "ROBUST_CHANNEL_CE8_ERROR", "fault of copy engine 8", _APP),
    Xid(78, "VGPU_START_ERROR", "a vGPU could not be started", Advice.UPDATE_SOFTWARE),
    Xid(79, "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", "fallen off the bus", Advice.REBOOT),
    Xid(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "a command stream arrived damaged", _APP),
    Xid(81, "ROBUST_CHANNEL_VGA_SUBSYSTEM_ERROR", "fault of an older GPU's display", _VENDOR),
    Xid(82, "ROBUST_CHANNEL_NVJPG0_ERROR", "fault of JPEG engine 0", _APP),
    Xid(83, "ROBUST_CHANNEL_NVDEC1_ERROR", "fault of decoder 1", _APP),
    Xid(84, "ROBUST_CHANNEL_NVDEC2_ERROR", "fault of decoder 2", _APP),
    Xid(85, "ROBUST_CHANNEL_CE9_ERROR", "fault of copy engine 9", _APP),
    Xid(86, "ROBUST_CHANNEL_OFA0_ERROR", "fault of optical-flow engine 0", _APP),
    Xid(87, "NVTELEMETRY_DRIVER_REPORT", "an older driver's report about itself", _VENDOR),
    Xid(88, "ROBUST_CHANNEL_NVDEC3_ERROR", "fault of decoder 3", _APP),
    Xid(89, "ROBUST_CHANNEL_NVDEC4_ERROR", "fault of decoder 4", _APP),
    Xid(90, "LTC_ERROR", "fault of an older GPU's level 2 cache", _VENDOR),
    Xid(91, "RESERVED_XID", "a reserved number", _VENDOR),
    Xid(92, "EXCESSIVE_SBE_INTERRUPTS", "many corrected memory errors", _NO),
    Xid(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "the infoROM's limit of writes is reached", _NO),
    # A reset is recommended when it suits; until then applications may go on.
    Xid(94, "ROBUST_CHANNEL_CONTAINED_ERROR", "a memory error, contained to one program", _APP),
    Xid(95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "a memory error that was not contained", _RESET),
    Xid(96, "ROBUST_CHANNEL_NVDEC5_ERROR", "fault of decoder 5", _APP),
    Xid(97, "ROBUST_CHANNEL_NVDEC6_ERROR", "fault of decoder 6", _APP),
    Xid(98, "ROBUST_CHANNEL_NVDEC7_ERROR", "fault of decoder 7", _APP),
    Xid(99, "ROBUST_CHANNEL_NVJPG1_ERROR", "fault of JPEG engine 1", _APP),
    Xid(100, "ROBUST_CHANNEL_NVJPG2_ERROR", "fault of JPEG engine 2", _APP),
    Xid(101, "ROBUST_CHANNEL_NVJPG3_ERROR", "fault of JPEG engine 3", _APP),
    Xid(102, "ROBUST_CHANNEL_NVJPG4_ERROR", "fault of JPEG engine 4", _APP),
    Xid(103, "ROBUST_CHANNEL_NVJPG5_ERROR", "fault of JPEG engine 5", _APP),
    Xid(104, "ROBUST_CHANNEL_NVJPG6_ERROR", "fault of JPEG engine 6", _APP),
    Xid(105, "ROBUST_CHANNEL_NVJPG7_ERROR", "fault of JPEG engine 7", _APP),
    Xid(106, "SMBPBI_TEST_MESSAGE", "a test message of the management bus", _NO),
    Xid(107, "SMBPBI_TEST_MESSAGE_SILENT", "a silent test message of the management bus", _NO),
    Xid(108, "NVLINK_REMOTE_TRANSLATION_ERROR", "an access over NVLink to memory that is not there", _NO),
    # NVIDIA's plugin ignores it; the catalogue does not.
    Xid(109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "the switch between two programs took too long", _RESET),
    Xid(110, "SEC_FAULT_ERROR", "a security fault", _RESET),
    Xid(111, "BUNDLE_ERROR_EVENT", "fault of an older GPU's state loading", _VENDOR),
    Xid(112, "DISP_SUPERVISOR_ERROR", "fault of an older GPU's display", _VENDOR),
    Xid(113, "DP_LT_FAILURE", "an older GPU could not train the link to a display", _VENDOR),
    Xid(114, "HEAD_RG_UNDERFLOW", "fault of an older GPU's display", _VENDOR),
    Xid(115, "CORE_CHANNEL_REGS", "registers of an older GPU's display", _VENDOR),
    Xid(116, "WINDOW_CHANNEL_REGS", "registers of an older GPU's display", _VENDOR),
    Xid(117, "CURSOR_CHANNEL_REGS", "registers of an older GPU's display", _VENDOR),
    Xid(118, "HEAD_REGS", "registers of an older GPU's display", _VENDOR),
    Xid(119, "GSP_RPC_TIMEOUT", "the GPU's system processor did not answer", _RESET),
    Xid(120, "GSP_ERROR", "fault of the GPU's system processor", _RESET),
    Xid(121, "C2C_ERROR", "corrected errors on the link to the CPU", _NO),
    Xid(122, "SPI_PMU_RPC_READ_FAIL", "an older GPU's firmware memory could not be read", _VENDOR),
    Xid(123, "SPI_PMU_RPC_WRITE_FAIL", "an older GPU's firmware memory could not be written", _VENDOR),
    Xid(124, "SPI_PMU_RPC_ERASE_FAIL", "an older GPU's firmware memory could not be erased", _VENDOR),
    Xid(125, "INFOROM_FS_ERROR", "an older GPU's infoROM is damaged", _VENDOR),
    Xid(126, "ROBUST_CHANNEL_CE10_ERROR", "fault of copy engine 10", _APP),
    Xid(127, "ROBUST_CHANNEL_CE11_ERROR", "fault of copy engine 11", _APP),
    Xid(128, "ROBUST_CHANNEL_CE12_ERROR", "fault of copy engine 12", _APP),
    Xid(129, "ROBUST_CHANNEL_CE13_ERROR", "fault of copy engine 13", _APP),
    Xid(130, "ROBUST_CHANNEL_CE14_ERROR", "fault of copy engine 14", _APP),
    Xid(131, "ROBUST_CHANNEL_CE15_ERROR", "fault of copy engine 15", _APP),
    Xid(132, "ROBUST_CHANNEL_CE16_ERROR", "fault of copy engine 16", _APP),
    Xid(133, "ROBUST_CHANNEL_CE17_ERROR", "fault of copy engine 17", _APP),
    Xid(134, "ROBUST_CHANNEL_CE18_ERROR", "fault of copy engine 18", _APP),
    Xid(135, "ROBUST_CHANNEL_CE19_ERROR", "fault of copy engine 19", _APP),
    Xid(136, "ALI_TRAINING_FAIL", "an NVLink could not be trained", _RESET),
    Xid(137, "NVLINK_PRIV_ERR", "a program may not do over NVLink what it did", _NO),
    Xid(138, "ROBUST_CHANNEL_DLA_ERROR", "fault of an older GPU's deep-learning accelerator", _VENDOR),
    Xid(139, "ROBUST_CHANNEL_OFA1_ERROR", "fault of optical-flow engine 1", _APP),
    Xid(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "an uncorrectable memory error that could not be handled", _RESET),
    Xid(141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "fault of CUDA's fast path", _NO),
    # Unlike the other engines' faults it comes with no advice but the vendor's.
    Xid(142, "ROBUST_CHANNEL_NVENC3_ERROR", "fault of encoder 3", _VENDOR),
    Xid(143, "GPU_INIT_ERROR", "the GPU could not be initialised", _RESET),
    Xid(144, "NVLINK_SAW_ERROR", "fault of an NVLink (SAW)", _LINK),
    Xid(145, "NVLINK_RLW_ERROR", "fault of an NVLink (RLW)", _LINK),
    Xid(146, "NVLINK_TLW_ERROR", "fault of an NVLink (TLW)", _LINK),
    Xid(147, "NVLINK_TREX_ERROR", "fault of an NVLink (TREX)", _LINK),
    Xid(148, "NVLINK_NVLPW_CTRL_ERROR", "fault of an NVLink (NVLPW)", _LINK),
    Xid(149, "NVLINK_NETIR_ERROR", "fault of an NVLink (NETIR)", _LINK),
    Xid(150, "NVLINK_MSE_ERROR", "fault of an NVLink (MSE)", _LINK),
    Xid(151, "ROBUST_CHANNEL_KEY_ROTATION_ERROR", "the keys of a link could not be renewed", Advice.REBOOT_GUEST),
    Xid(152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "a bad access by the deep-learning accelerator", _NO),
    Xid(153, "ROBUST_CHANNEL_DLA_TIMEOUT", "the deep-learning accelerator took too long", _NO),
    Xid(154, "GPU_RECOVERY_ACTION_CHANGED", "the driver asks for another action", Advice.READ_RECOVERY_ACTION),
    # Also raised where a link is put down on purpose: the listed action is the safe side.
    Xid(155, "NVLINK_SW_DEFINED_ERROR", "an NVLink was put down by software", _RESET),
    Xid(156, "RESOURCE_RETIREMENT_EVENT", "a faulty unit is marked for repair", _RESET),
    # Says that no more repairs are possible, and that workloads may go on.
    Xid(157, "RESOURCE_RETIREMENT_FAILURE", "a faulty unit could not be marked for repair", _NO),
    Xid(158, "GPU_FATAL_TIMEOUT", "the GPU did not answer for too long", _RESET),
    Xid(159, "ROBUST_CHANNEL_CHI_NON_DATA_ERROR", "fault of the link to the CPU", Advice.CHECK_UNIFIED_MEMORY),
    Xid(160, "CHANNEL_RETIREMENT_EVENT", "a faulty memory channel is marked for repair", _NO),
    Xid(161, "CHANNEL_RETIREMENT_FAILURE", "a faulty memory channel could not be marked for repair", _NO),
    Xid(162, "PSHC_REENGAGED", "power smoothing is on again", Advice.WATCH),
    Xid(163, "PSHC_DISENGAGED", "power smoothing is off", Advice.WATCH),
    Xid(164, "PSHC_LOW_LIFETIME", "power smoothing will soon be worn out", Advice.WATCH),
    Xid(165, "PSHC_ZERO_LIFETIME", "power smoothing is worn out", Advice.WATCH),
    Xid(166, "NVLINK_SECURE_CRYPTO_ERR", "traffic on an NVLink before its encryption was set up", Advice.UNSTATED),
    Xid(167, "PCIE_FATAL_TIMEOUT", "PCIe did not answer for too long", Advice.UNSTATED),
    Xid(168, "REDUCED_GPU_MEMORY_CAPACITY", "faulty memory in the protected region", Advice.UNSTATED),
    Xid(169, "SEC2_HALT_ERROR", "the security controller halted", Advice.UNSTATED),
    Xid(170, "NVLINK_SECURE_OTHER", "fault of an encrypted NVLink", Advice.UNSTATED),
    # Both tell more about an XID 48, and are taken as that is.
    Xid(171, "UNCORRECTABLE_DRAM_ERROR", "an uncorrectable error of the device memory", Advice.UNSTATED),
    Xid(172, "UNCORRECTABLE_SRAM_ERROR", "an uncorrectable error of a cache or register", Advice.UNSTATED),
)
CATALOGUE: Final[Mapping[int, Xid]] = MappingProxyType({xid.number: xid for xid in _ENTRIES})


def classify_xid(number: int) -> XidClass:
    """The class of an XID; one that the catalogue does not list is of the class RESET."""
    xid = CATALOGUE.get(number)
    return XidClass.RESET if xid is None else xid.advice.xid_class


def describe_xid(number: int) -> str:
    """For people: ``XID 79, fallen off the bus``."""
    xid = CATALOGUE.get(number)
    return f"XID {number}, {'not in the catalogue' if xid is None else xid.meaning}"
