package runtimetest

// Difference is a behaviour that engines do not have in common. Tests ask for it by name, so
// that the table cannot say what no test sees.
type Difference struct {
	// What is the case; Libcontainer and Own are what the two engines do.
	What, Libcontainer, Own string
}

// Differences are all that the suite knows, by name. docs/oci-conformance.md shows them.
var Differences = map[string]Difference{}

func differs(name, what, libcontainer, own string) string {
	Differences[name] = Difference{what, libcontainer, own}
	return name
}

// either is what this engine is known to do where engines differ. The name is one of
// Differences.
func either[T any](r *rig, name string, libcontainer, own T) T {
	r.Helper()
	if _, known := Differences[name]; !known {
		r.Fatalf("%q is not in Differences", name)
	}
	if r.libcontainer {
		return libcontainer
	}
	return own
}
