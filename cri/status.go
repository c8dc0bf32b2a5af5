package cri

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"github.com/coracle-project/coracle/cri/field"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Node is what concerns all pods.
type Node interface {
	// Ready returns why nothing can be started yet; nil if everything can.
	Ready() error
	NetworkReady(ctx context.Context) error
	SetPodCIDR(ctx context.Context, ranges []netip.Prefix) error
}

const (
	runtimeName = "coracle"
	// apiVersion is the version of this API; kubeVersion that of VersionRequest
	// and VersionResponse, "0.1.0" since the beginning of CRI.
	apiVersion  = "v1"
	kubeVersion = "0.1.0"
	// networkAnswer is how long a CNI plugin may think about its status, which the
	// kubelet asks for every few seconds.
	networkAnswer = 2 * time.Second
	// builtInNetwork is NetworkReady's reason while the built-in network connects pods: a kubelet
	// whose cluster leaves that to a plugin waits.
	builtInNetwork = "BuiltInNetwork"
)

// Version says who we are.
func (s *service) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version:           kubeVersion,
		RuntimeName:       runtimeName,
		RuntimeVersion:    s.config.Version,
		RuntimeApiVersion: apiVersion,
	}, nil
}

// Status reports whether pods can be run and connected, and what handlers can do.
// The runtime is ready once recovery has asked the shims what runs, and while containers can be
// started.
func (s *service) Status(ctx context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	bounded, cancel := context.WithTimeout(ctx, networkAnswer)
	defer cancel()
	if err := s.node.NetworkReady(bounded); err != nil {
		network.Status = false
		network.Reason = "NetworkNotReady"
		network.Message = err.Error()
	} else if s.deps.BuiltInNetwork != nil {
		if why := s.deps.BuiltInNetwork(); why != "" {
			network.Reason, network.Message = builtInNetwork, why
		}
	}
	ready := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	if s.deps.RuntimeReady != nil {
		if err := s.deps.RuntimeReady(); err != nil {
			ready.Status = false
			ready.Reason = "ShimUnavailable"
			ready.Message = err.Error()
		}
	}
	if err := s.node.Ready(); err != nil && ready.Status {
		ready.Status = false
		ready.Reason = "RecoveryIncomplete"
		ready.Message = err.Error()
	}
	resp := &runtimeapi.StatusResponse{
		Status:   &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{ready, network}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	for _, h := range s.config.Handlers() {
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &runtimeapi.RuntimeHandler{
			Name: h.Name,
			Features: &runtimeapi.RuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: h.RecursiveReadonly, UserNamespaces: h.UserNamespaces,
			},
		})
	}
	if r.GetVerbose() {
		info := s.config.Info()
		resp.Info = make(map[string]string, len(info))
		for key, value := range info {
			text, err := json.Marshal(value)
			if err != nil {
				return nil, err
			}
			resp.Info[key] = string(text)
		}
	}
	return resp, nil
}

// RuntimeConfig tells the kubelet which cgroup driver to use.
func (s *service) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if s.config.SystemdCgroup {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver},
	}, nil
}

// UpdateRuntimeConfig takes the address ranges that the cluster gives to this node, one or
// one of each family with a comma between. Without any nothing is changed.
func (s *service) UpdateRuntimeConfig(ctx context.Context,
	r *runtimeapi.UpdateRuntimeConfigRequest,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	text := r.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if text == "" {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	var ranges []netip.Prefix
	for one := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			return nil, field.Invalid("runtime_config.network_config.pod_cidr", "%q is not an address range such as 10.85.0.0/16", one)
		}
		ranges = append(ranges, p.Masked())
	}
	if err := s.node.SetPodCIDR(ctx, ranges); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// info makes the verbose answer's map as crictl inspect expects it: one key "info"
// whose value is a JSON object.
func info(value any) (map[string]string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return map[string]string{"info": string(text)}, nil
}
