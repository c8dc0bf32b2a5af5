package apiserver

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// longestShared bounds a file of SharedFiles, in bytes.
const longestShared = 4 << 20

// SharedFiles are files whose content all control-plane nodes must agree on, by the flags that name
// them. Each machine has its own copies.
type SharedFiles map[string]string

// Digests returns the SHA-256 of what the files have now, hexadecimal, by flag. It is never nil.
func (s SharedFiles) Digests() (map[string]string, error) {
	digests := map[string]string{}
	for flag, path := range s {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		data, err := io.ReadAll(io.LimitReader(f, longestShared+1))
		_ = f.Close()
		if err == nil && len(data) > longestShared {
			err = fmt.Errorf("%s is longer than %d bytes", path, longestShared)
		}
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		digests[flag] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	return digests, nil
}

// agree refuses a machine whose files differ from those of this one. A machine of an earlier
// release sends no digests.
func (s SharedFiles) agree(j Joiner) error {
	if j.Files == nil {
		return nil
	}
	own, err := s.Digests()
	if err != nil {
		return err
	}
	for _, flag := range slices.Sorted(maps.Keys(own)) {
		switch j.Files[flag] {
		case own[flag]:
		case "":
			return apierrors.NewBadRequest(fmt.Sprintf("the cluster has --%s %s: copy that file to %s, and give it as --%[1]s", flag, s[flag], j.Name))
		default:
			return apierrors.NewBadRequest(fmt.Sprintf("--%s: the file on %s differs from the cluster's %s: copy that file there, because control-plane "+
				"nodes have to agree", flag, j.Name, s[flag]))
		}
	}
	for _, flag := range slices.Sorted(maps.Keys(j.Files)) {
		if own[flag] == "" {
			return apierrors.NewBadRequest(fmt.Sprintf("--%s on %s: the cluster has none, and its control-plane nodes have to agree", flag, j.Name))
		}
	}
	return nil
}
