package scheduler_test

import (
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins"
)

func defaults(h *framework.Handle) []framework.Enabled { return plugins.Default(h, plugins.Args{}) }
