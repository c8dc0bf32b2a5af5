package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/util/tail"

	"github.com/coracle-project/coracle/cluster/kubelet/logs"
)

// terminationMessage is what an exited container left as its last word: the end of the file that is
// mounted at its terminationMessagePath, or the end of its log if it asked for that and failed.
func terminationMessage(s *runtimeapi.ContainerStatus) string {
	fallback := fallsBackToLogs(s)
	path := s.Annotations[annotationMessagePath]
	if path != "" {
		path = filepath.Join("/", path)
	}
	for _, m := range s.Mounts {
		if path == "" || m.ContainerPath != path {
			continue
		}
		data, _, err := tail.ReadAtMost(m.HostPath, kubecontainer.MaxContainerTerminationMessageLength)
		switch {
		case err == nil && len(data) > 0:
			return string(data)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("Error on reading termination log %s: %v", m.HostPath, err)
		}
		break
	}
	if !fallback {
		return ""
	}
	return lastLines(s.LogPath)
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
