package cri

import (
	"context"
	"encoding/json"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	runtimeName = "coracle"
	// apiVersion is the version of this API; kubeVersion that of VersionRequest
	// and VersionResponse, "0.1.0" since the beginning of CRI.
	apiVersion  = "v1"
	kubeVersion = "0.1.0"
	// networkAnswer is how long a CNI plugin may think about its status, which the
	// kubelet asks for every few seconds.
	networkAnswer = 2 * time.Second
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
// The runtime is ready once it serves: recovery comes before the socket.
func (s *service) Status(ctx context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	bounded, cancel := context.WithTimeout(ctx, networkAnswer)
	defer cancel()
	if err := s.deps.Pods.NetworkReady(bounded); err != nil {
		network.Status = false
		network.Reason = "NetworkNotReady"
		network.Message = err.Error()
	}
	resp := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			network,
		}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
	for _, name := range append([]string{""}, s.config.Handlers...) {
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &runtimeapi.RuntimeHandler{
			Name:     name,
			Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: s.config.RecursiveReadonly},
		})
	}
	if r.GetVerbose() {
		resp.Info = make(map[string]string, len(s.config.Info))
		for key, value := range s.config.Info {
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

// info makes the verbose answer's map as crictl inspect expects it: one key "info"
// whose value is a JSON object.
func info(value any) (map[string]string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return map[string]string{"info": string(text)}, nil
}
