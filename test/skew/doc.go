// Package skew tests old and new versions side by side: what a library and a controller of an earlier version left in
// Redis, and sent to it, is kept in testdata under that version's name, and what a later version may send is in
// testdata/future. Services update when they like, so one table has readers and writers of many versions.
//
// A version's folder is written once, when the version is made, and never again:
//
//	go test ./test/skew -run TestRecord -record v0.2.0
package skew
