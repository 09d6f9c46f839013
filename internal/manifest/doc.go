// Package manifest owns how people's YAML files are read: strictly, with every defect named by file, line and path. It
// reads policies for whoever takes them from files instead of the API server, and is the decoder of scenario files.
//
// It refuses what a reader would otherwise have to guess: unknown and repeated fields, wrong types, null in the place
// of a value, and words such as yes, which are a boolean for one YAML reader and text for another.
package manifest
