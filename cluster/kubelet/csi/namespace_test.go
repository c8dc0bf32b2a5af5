package csi

import (
	"testing"

	"github.com/coracle-project/coracle/cluster/kubelet/internal/volumetest"
)

func TestMain(m *testing.M) { volumetest.InMountNamespace(m) }
