package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/coracle-project/coracle/cluster/kubelet/logs"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
)

// terminationMessage is what an exited container left as its last word: the end of the file that is
// mounted at its terminationMessagePath, or the end of its log if it asked for that and failed.
func terminationMessage(s *runtimeapi.ContainerStatus) string {
	fallback := fallsBackToLogs(s)
	if file := messageFile(s); file != "" {
		// The file may be of a volume, in which containers make files of any type.
		data, err := layout.ReadEnd(file, kubecontainer.MaxContainerTerminationMessageLength)
		switch {
		case err == nil && len(data) > 0:
			return string(data)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("Error on reading termination log %s: %v", file, err)
		}
	}
	if !fallback {
		return ""
	}
	return lastLines(s.LogPath)
}

// messageFile is the file of the node that is mounted at the container's terminationMessagePath, ""
// if there is none. Of several mounts the last one counts, as in the container: it is the
// kubelet's, which follows the volumes of the pod.
func messageFile(s *runtimeapi.ContainerStatus) string {
	path := s.Annotations[annotationMessagePath]
	if path == "" {
		return ""
	}
	path = filepath.Join("/", path)
	for _, m := range slices.Backward(s.Mounts) {
		if m.ContainerPath == path {
			return m.HostPath
		}
	}
	return ""
}

func lastLines(path string) string {
	lines := int64(kubecontainer.MaxContainerTerminationMessageLogLines)
	var out bytes.Buffer
	if err := logs.Read(context.Background(), path, logs.Options{Tail: &lines}, &out, &out); err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	b := out.Bytes()
	return string(b[max(0, len(b)-kubecontainer.MaxContainerTerminationMessageLogLength):])
}
