// Package early has its program start a zygote before the program's main function and most
// initialisers run, if one of its arguments is run, create or exec. It is for programs that live
// for one container.
package early

import (
	"os"
	"slices"

	"github.com/coracle-project/coracle/runtime/zygote/program"
)

// Starting is the program's zygote, nil if its arguments need none. It is started early because the
// packages that it needs are few (Go specification, "Program initialization").
var Starting = begin()

func begin() *program.Starting {
	if len(os.Args) < 2 || !slices.ContainsFunc(os.Args[1:], wants) {
		return nil
	}
	return program.Begin()
}

// wants says whether an argument may be a command that makes a process. A value of a flag may
// look like one; then the zygote is started in vain, and discarded.
func wants(arg string) bool { return arg == "run" || arg == "create" || arg == "exec" }
