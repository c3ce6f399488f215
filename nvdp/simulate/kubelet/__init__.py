"""The kubelet's twin: a real gRPC kubelet that behaves as the kubelet contract says, crashes included."""

from nvdp.simulate.kubelet.behaviour import BEHAVIOURS as BEHAVIOURS
from nvdp.simulate.kubelet.faults import Hold as Hold
from nvdp.simulate.kubelet.faults import HoldPoint as HoldPoint
from nvdp.simulate.kubelet.kubelet import KUBELET_FILES as KUBELET_FILES
from nvdp.simulate.kubelet.kubelet import Kubelet as Kubelet
from nvdp.simulate.kubelet.records import AdmissionError as AdmissionError
from nvdp.simulate.kubelet.records import KubeletCrashedError as KubeletCrashedError
from nvdp.simulate.kubelet.records import ListMessage as ListMessage
from nvdp.simulate.kubelet.records import PluginCall as PluginCall
from nvdp.simulate.kubelet.records import Pod as Pod
from nvdp.simulate.kubelet.records import Registration as Registration
