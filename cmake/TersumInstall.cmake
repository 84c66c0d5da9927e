# What `cmake --install` puts where: headers, library, package files for CMake and pkg-config, documents. The tools say
# so themselves, beside their targets. Everything is relocatable: the prefix may be moved.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tersum)

set_target_properties(tersum_include PROPERTIES EXPORT_NAME include)
install(TARGETS tersum tersum_include EXPORT tersumTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT tersumTargets NAMESPACE tersum:: DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tersum DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tersumConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tersumConfig.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a new minor version may break programs.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tersumConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tersumConfig.cmake ${PROJECT_BINARY_DIR}/tersumConfigVersion.cmake
  DESTINATION ${package_dir})

# tersum.pc finds the prefix from its own place.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(TERSUM_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up /${pkgconfig_dir} /)
  string(REGEX REPLACE "/$" "" up "${up}")
  set(TERSUM_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(kind LIB INCLUDE)
  set(TERSUM_PC_${kind}DIR "\${prefix}/${CMAKE_INSTALL_${kind}DIR}")
  if(IS_ABSOLUTE ${CMAKE_INSTALL_${kind}DIR})
    set(TERSUM_PC_${kind}DIR ${CMAKE_INSTALL_${kind}DIR})
  endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/tersum.pc.in ${PROJECT_BINARY_DIR}/tersum.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tersum.pc DESTINATION ${pkgconfig_dir})

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")

# Libraries outside the system's folders (an UCX of one's own) are found where they were at build time.
foreach(target tersum tersum-info tersum-perf)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endforeach()
