package page

import "fmt"

// Compared has a column for each runtime, and how many times the first one's figure each other
// one's is.
func Compared(runtimes []string) Table {
	t := Table{Corner: "median (lowest–highest)"}
	for i, name := range runtimes {
		t.Columns = append(t.Columns, Column{Head: name, Of: name, Cell: spread(0, 1, short, short)})
		if i > 0 {
			t.Columns = append(t.Columns, Column{Head: "×", Of: name, Than: &Than{Of: runtimes[0], Digits: 1, None: "–"}})
		}
	}
	return t
}

// ClusterTable is that of whole clusters.
var ClusterTable = Table{Columns: []Column{
	{Head: "coracle", Of: "coracle", Cell: at(.5, significant)},
	{Head: "upstream", Of: "upstream", Cell: at(.5, significant)},
	{Head: "×", Of: "upstream", Than: &Than{Of: "coracle", Digits: 1}},
}}

// Mounts is how many more there are on the host for a part of the figures of one container, and
// Turns how often programs take turns where each runs many times in a row.
const (
	Mounts = 2000
	Turns  = 5
)

// InRow is how many of so many runs a program makes in a row then.
func InRow(runs int) int { return max(runs/Turns, 1) }

// Whose figures those of one container are.
const (
	InTurns = "in turns"
	InLoop  = "in a loop"
	Steps   = "steps"
	Starter = "starter"
	Sizes   = "size"
)

// WithMounts is where there are more, and CPU what a command takes of the processor.
var WithMounts = fmt.Sprintf("%d mounts", Mounts)

// CPU is the processor time where the commands run so.
func CPU(how string) string { return how + ", CPU" }

// OnCrowdedHost is an engine where there are more mounts.
func OnCrowdedHost(engine string) string { return engine + ", " + WithMounts }

var toCrun = &Than{Row: "crun", Digits: 2}

// ContainerTables are commands, engines, and the steps of one command.
var ContainerTables = []Table{
	{Corner: "ms", Columns: []Column{
		{Head: "in turns: p10", Of: InTurns, Cell: at(.1, hundredths)},
		{Head: "p50", Of: InTurns, Cell: at(.5, hundredths)},
		{Head: "×", Of: InTurns, Than: toCrun},
		{Head: "CPU", Of: CPU(InTurns), Cell: at(.5, hundredths)},
		{Head: "×", Of: CPU(InTurns), Than: toCrun},
		{Head: "in a loop: p10", Of: InLoop, Cell: at(.1, hundredths)},
		{Head: "p50", Of: InLoop, Cell: at(.5, hundredths)},
		{Head: "×", Of: InLoop, Than: toCrun},
		{Head: "CPU", Of: CPU(InLoop), Cell: at(.5, hundredths)},
		{Head: "×", Of: CPU(InLoop), Than: toCrun},
		{Head: "p50, " + WithMounts, Of: WithMounts, Cell: at(.5, hundredths)},
		{Head: "×", Of: WithMounts, Than: toCrun},
	}},
	engineTable("coracle", "libcontainer", OnCrowdedHost("coracle"), OnCrowdedHost("libcontainer")),
	{Corner: "step", Columns: []Column{{Head: "µs", Of: Steps, Cell: at(.5, whole)}}},
}

func engineTable(names ...string) Table {
	t := Table{Corner: "ms"}
	for _, name := range names { // a rate has a single value
		t.Columns = append(t.Columns, Column{Head: name, Of: name, Cell: spread(.1, .9, hundredths, whole)})
	}
	return t
}
