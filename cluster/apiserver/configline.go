package apiserver

import "github.com/coracle-project/coracle/cluster/internal/configline"

// inFile says which file given by flag err is about, and on which line, if that can be found out.
func inFile(flag, path string, data []byte, err error) error {
	return configline.Error(flag, path, data, err)
}
